# use hushflow_mechanism::jme::{JointMechanism, JointParameters};
# use hushflow_mechanism::moments::{Clipper, Layout, SecondMoment};
# use hushflow_mechanism::noise::NoiseSource;
# use hushflow_mechanism::release::Shards;
# use hushflow_mechanism::sensitivity::Neighbours;
# use hushflow_mechanism::strategy::{StrategyName, build};
# use hushflow_mechanism::view::View;
# use hushflow_mechanism::workload::Workload;
# use hushflow_operators::*;
# use std::sync::{Arc, mpsc};
# use timely::dataflow::operators::{Inspect, vec::ToStream};
# let strategy = build(StrategyName::SquareRoot, &Workload::Prefix, Some(8))?;
# let layout = Layout { dimension: 1, second: SecondMoment::Full };
# let clipper = Arc::new(Clipper::new(&[(-1.0, 1.0)], 1.0)?);
# let mechanism = Arc::new(JointMechanism::new(JointParameters {
#     layout,
#     neighbours: Neighbours::ReplaceOne,
#     clip_norm: 1.0,
#     noise_multiplier: 4.0,
#     geometry: strategy.geometry(),
#     second_moment_weight: None,
#     count_weight: None,
# })?);
# let shards = Shards::new(1, layout, 1);
# let setup = ReleaseSetup {
#     mechanism: mechanism.clone(),
#     strategy: strategy.clone(),
#     shards,
#     source: NoiseSource::System,
#     states: Default::default(),
#     first_epoch: 1,
#     checkpoint_interval: 64,
# };
# let fault = Fault::new();
# let (seen, all_seen) = mpsc::channel();
