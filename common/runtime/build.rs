//! Passes the version of the compiler to the crate, for `/version`.
use std::{env, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).arg("--version").output();
    let version = output.ok().and_then(|it| String::from_utf8(it.stdout).ok());
    let version = version.unwrap_or_default();
    println!("cargo:rustc-env=RUST_VERSION={}", version.trim());
}
