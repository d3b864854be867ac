//! A controller that is interrupted at every single write, in every way.
//!
//! ```text
//! undisturbed life ──▶ its states at rest, and how many writes it takes
//!                                   │ for every write × every fault
//!                                   ▼
//! the same life, in a namespace of its own, with one fault ──▶ the same states at rest
//!                                   └ a witness looks at every write before it is done
//! ```

mod life;
mod state;
mod witness;

use std::time::Instant;

use futures::{StreamExt as _, stream};
use lab::{Binary, Lab, OPERATOR_NAMESPACE, Script, saboteur::Fault};

use life::Life;

/// Lives at a time: most of each is waiting.
const AT_ONCE: usize = 8;

/// Everything that may happen at a write.
const FAULTS: [Fault; 8] = [
    Fault::KilledBefore,
    Fault::KilledAfter,
    Fault::Refused(409),
    Fault::Refused(429),
    Fault::Refused(500),
    Fault::Lost,
    Fault::HeldUp,
    Fault::Expired,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_whenever_the_controller_is_interrupted() {
    let mut lab = Lab::start().await.unwrap();
    let _webhook = lab.webhook(&[]).await.unwrap();
    let _simulator = lab.simulator(Script::Happy).await.unwrap();
    let account = Binary::Controller.account();
    let client = lab
        .account_client(OPERATOR_NAMESPACE, account)
        .await
        .unwrap();

    let undisturbed = Life::new(&lab, &client, "undisturbed", None, None);
    let undisturbed = undisturbed.live().await.unwrap();
    assert_eq!(undisturbed.violations, [""; 0]);
    let writes = &undisturbed.writes;
    println!("an undisturbed life takes {} writes:", writes.len());
    for (number, write) in (1..).zip(writes) {
        println!("{number:3} {write}");
    }

    let start = Instant::now();
    let points = (1..=writes.len()).flat_map(|at| FAULTS.map(|fault| (at, fault)));
    let points: Vec<_> = points.collect();
    let outcomes = stream::iter(points.clone()).map(|(at, fault)| {
        let (lab, client, undisturbed) = (&lab, &client, &undisturbed);
        async move {
            let namespace = format!(
                "point-{at}-{}",
                FAULTS.iter().position(|it| *it == fault).unwrap()
            );
            let life = Life::new(
                lab,
                client,
                &namespace,
                Some((at, fault)),
                Some(undisturbed),
            );
            let (struck, problems) = match life.live().await {
                Ok(lived) => (lived.struck, lived.problems(undisturbed)),
                Err(error) => (true, vec![format!("{error:#}")]),
            };
            let what = format!("{fault} write {at} ({})", undisturbed.writes[at - 1]);
            (what, struck, problems)
        }
    });
    let mut outcomes: Vec<_> = outcomes.buffer_unordered(AT_ONCE).collect().await;
    outcomes.retain(|(_, struck, _)| *struck);
    let tried = outcomes.len();
    outcomes.retain(|(_, _, problems)| !problems.is_empty());
    println!(
        "{tried} points tried in {:.0} s, {} of them with a violation",
        start.elapsed().as_secs_f64(),
        outcomes.len()
    );
    assert!(outcomes.is_empty(), "{outcomes:#?}");
    // Two writes of the status are one when they come together: some lives have fewer.
    assert!(
        tried * 10 >= points.len() * 9,
        "{tried} of {}",
        points.len()
    );
}
