//! A process that forks while the noise of the next epoch is drawn and waiting: parent and child never release the same noise.
//!
//! A program of its own, with one thread, for nothing else may be forked soundly.

use fork::{Fork, fork, waitpid};
use hushflow_mechanism::mechanism::{MatrixMechanism, Method, MomentParameters};
use hushflow_mechanism::moments::{Layout, SecondMoment};
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::release::{ReleaseShard, Shards};
use hushflow_mechanism::sensitivity::Neighbours;
use hushflow_mechanism::strategy::build;
use hushflow_mechanism::workload::Workload;

const LAYOUT: Layout = Layout { dimension: 8, second: SecondMoment::Full };

/// A shard whose releases of nothing are its noise.
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

/// What the parent and the child release of the epoch whose noise was drawn before they parted.
fn part(source: NoiseSource) -> [Vec<i128>; 2] {
    let place = tempfile::tempdir().expect("a temporary directory");
    let told = place.path().join("child");
    let mut shard = shard(source);
    shard.prepare().expect("entropy");
    let forked = fork().expect("a process can be forked");
    let noise = shard.release(1, &vec![0; LAYOUT.coordinates()]).expect("a release");
    let Fork::Parent(child) = forked else {
        std::fs::write(&told, format!("{noise:?}")).expect("there is room");
        // Nothing of the parent's is ended twice.
        std::process::exit(0)
    };
    waitpid(child).expect("the child ends");
    let told = std::fs::read_to_string(told).expect("the child has written");
    let numbers = told.trim_matches(['[', ']']).split(", ").map(|number| number.parse().expect("an integer"));
    [noise, numbers.collect()]
}

fn main() {
    let [parent, child] = part(NoiseSource::Seeded(1));
    assert!(parent == child, "the same noise would be seen");
    let [parent, child] = part(NoiseSource::System);
    assert_eq!((parent.len(), child.len()), (LAYOUT.coordinates(), LAYOUT.coordinates()));
    // Of 45 coordinates with deviations of more than 2³² steps none agrees but for one case in 10⁷.
    assert!(parent.iter().zip(&child).all(|(parent, child)| parent != child), "noise was released twice");
}
