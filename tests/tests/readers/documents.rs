//! The documents: those of the rules' table and of cloud-init's examples, damaged ones of both, and generated ones.
//! Every run has the same.

use std::collections::HashSet;
use std::path::Path;

use fastrand::Rng;
use lab::readers::Document;
use lab::tables;

use crate::generate;

/// Damaged documents of each document of the table.
const DAMAGES: usize = 4;
/// Generated networks of version 2.
const NETWORKS: usize = 1000;

/// Texts that a slip of the hand leaves in a document, and texts that YAML 1.1 reads in its own way.
const SLIPS: [&str; 34] = [
    " ", "  ", "\t", "\n", "\n\n", "\n  ", "\n\t", ":", ": ", "- ", "-", ",", ",,", "[", "]", "{",
    "}", "'", "\"", "#", " #", "&a ", "*a", "!x ", "? ", "|", "> ", "%", "@", "`", "yes", "0x",
    "1:30", "é",
];

/// All documents, each once.
pub(crate) fn all(examples: &Path) -> Vec<Document> {
    let mut rng = Rng::with_seed(20);
    let table = of_the_table();
    let mut all = table.clone();
    all.extend(of_the_examples(examples));
    for document in &table {
        all.extend((0..DAMAGES).map(|_| damaged(document, &mut rng)));
    }
    all.extend(generate::user_data());
    all.extend((0..NETWORKS).map(|_| generate::network(&mut rng)));
    all.extend(generate::settings_of_networks());
    let mut seen = HashSet::new();
    all.retain(|document| seen.insert(document.clone()));
    all
}

fn of_the_table() -> Vec<Document> {
    let cases = tables::table("cloud-init").unwrap();
    let documents = cases.iter().flat_map(|case| {
        ["userData", "networkData"].map(|field| {
            let text = case.spec["cloudInit"][field].as_str()?;
            // `(x 5 times)` is a long text in the table; the schema of an administrator is no reader's.
            let is_plain = !text.starts_with('(') && case.is_plain();
            is_plain.then(|| Document {
                field,
                text: text.to_owned(),
            })
        })
    });
    documents.flatten().collect()
}

/// The examples that are not compressed.
fn of_the_examples(folder: &Path) -> Vec<Document> {
    let Ok(files) = std::fs::read_dir(folder) else {
        return vec![];
    };
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    let texts = paths
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok());
    texts
        .map(|text| Document {
            field: "userData",
            text,
        })
        .collect()
}

/// The document with one to three slips; its first line, which decides the format, stays.
fn damaged(document: &Document, rng: &mut Rng) -> Document {
    let start = match document.field {
        "userData" => document.text.find('\n').map_or(0, |end| end + 1),
        _ => 0,
    };
    let (head, body) = document.text.split_at(start);
    let mut body = body.to_owned();
    for _ in 0..rng.usize(1..=3) {
        let at = body.floor_char_boundary(rng.usize(..=body.len()));
        let end = body.floor_char_boundary((at + rng.usize(..4)).min(body.len()));
        match rng.u8(..4) {
            0 => body.replace_range(at..end, ""),
            1 => body.replace_range(at..end, rng.choice(SLIPS).unwrap()),
            2 => body.insert_str(at, rng.choice(SLIPS).unwrap()),
            _ => {
                let mut lines: Vec<_> = body.split_inclusive('\n').collect();
                let index = rng.usize(..=lines.len());
                match lines.get(index) {
                    Some(line) if rng.bool() => lines.insert(index, line),
                    Some(_) => drop(lines.remove(index)),
                    None => {}
                }
                body = lines.concat();
            }
        }
    }
    Document {
        field: document.field,
        text: format!("{head}{body}"),
    }
}
