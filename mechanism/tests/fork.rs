//! Tests a fork after the noise of the next epoch was drawn: parent and child release different
//! noise.
//!
//! The test is a separate program without a test harness, because only a process with one thread
//! can fork safely.

use fork::{Fork, fork, waitpid};
use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters};
use hushflow_mechanism::moments::{Layout, SecondMoment};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::release::{ReleaseShard, Shards};
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::build;
use hushflow_mechanism::workload::Workload;

const LAYOUT: Layout = Layout::new(8, SecondMoment::Full);

/// A shard; its releases of zero sums are its noise.
fn shard(source: NoiseSource) -> ReleaseShard {
    let parameters = MomentParameters {
        method: Method::Jme,
        layout: LAYOUT,
        neighbours: Neighbours::ReplaceOne,
        clip_norm: 1.0,
        noise_multiplier: 4.0,
        second_moment_weight: None,
        count_weight: None,
        bin_weight: None,
    };
    let strategy = build("identity", &Workload::Prefix, Some(10)).expect("a strategy");
    let mechanism = MatrixMechanism::new(parameters, strategy).expect("a mechanism");
    ReleaseShard::new(0, Shards::new(1, LAYOUT, 1), &mechanism, source)
}

/// Epochs that are released together.
const EPOCHS: usize = 3;

/// Returns the releases of parent and child for a run of epochs. The noise of `drawn` epochs was
/// drawn before the fork.
fn releases(source: NoiseSource, drawn: usize) -> [Vec<i128>; 2] {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("child");
    let mut shard = shard(source);
    shard.prepare_run(drawn).expect("entropy");
    let forked = fork().expect("a process can be forked");
    let zero = vec![0_i128; LAYOUT.coordinates()];
    let released = shard.release_run(1, [zero.as_slice().into(); EPOCHS].into_iter()).expect("a release");
    let noise: Vec<i128> = released.row().iter().collect();
    let Fork::Parent(child) = forked else {
        std::fs::write(&path, format!("{noise:?}")).expect("there is room");
        // The child must not run the parent's destructors.
        std::process::exit(0)
    };
    waitpid(child).expect("the child ends");
    let text = std::fs::read_to_string(path).expect("the child has written");
    let numbers = text.trim_matches(['[', ']']).split(", ").map(|number| number.parse().expect("an integer"));
    [noise, numbers.collect()]
}

fn main() {
    for drawn in 1..=EPOCHS {
        let [parent, child] = releases(NoiseSource::Seeded(1), drawn);
        assert!(parent == child, "a seeded source gives equal noise, so the test would find it");
        let [parent, child] = releases(NoiseSource::System, drawn);
        let length = EPOCHS * LAYOUT.coordinates();
        assert_eq!((parent.len(), child.len()), (length, length));
        // Parent and child draw 135 coordinates with deviations above 2³² steps. Any of these agree
        // by chance with a probability below 10⁻⁷.
        assert!(parent.iter().zip(&child).all(|(parent, child)| parent != child), "noise was released twice");
    }
}
