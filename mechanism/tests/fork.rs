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

const LAYOUT: Layout = Layout { dimension: 8, second: SecondMoment::Full, sent: None };

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
    };
    let strategy = build("identity", &Workload::Prefix, Some(10)).expect("a strategy");
    let mechanism = MatrixMechanism::new(parameters, strategy).expect("a mechanism");
    ReleaseShard::new(0, Shards::new(1, LAYOUT, 1), &mechanism, source)
}

/// Returns the releases of parent and child for the epoch whose noise was drawn before the fork.
fn releases(source: NoiseSource) -> [Vec<i128>; 2] {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("child");
    let mut shard = shard(source);
    shard.prepare().expect("entropy");
    let forked = fork().expect("a process can be forked");
    let noise = shard.release(1, &vec![0; LAYOUT.coordinates()]).expect("a release");
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
    let [parent, child] = releases(NoiseSource::Seeded(1));
    assert!(parent == child, "a seeded source gives equal noise, so the test would find it");
    let [parent, child] = releases(NoiseSource::System);
    assert_eq!((parent.len(), child.len()), (LAYOUT.coordinates(), LAYOUT.coordinates()));
    // Two of 45 coordinates with deviations above 2³² steps agree with a probability below 10⁻⁷.
    assert!(parent.iter().zip(&child).all(|(parent, child)| parent != child), "noise was released twice");
}
