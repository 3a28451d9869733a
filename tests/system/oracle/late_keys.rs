//! All records of an entity in one cell: those of a key that is discovered after the last of them.
//!
//! It is the worst case of the theorem in `mechanism/src/discovery/mod.rs`: K records, in K epochs,
//! enter the slot of their key together. Both worlds draw the same noise, so they discover the key
//! in the same epoch, and their distance is exactly that of the moments.

use std::fmt::Write as _;

use hushflow::publication::MomentPublication;
use hushflow::state::PublicReader;

use crate::harness::{Lab, finish, releases, run};

/// K, the number of epochs.
const RECORDS: u64 = 3;

/// Different entities of an epoch.
const ENTITIES: u64 = 100;

/// The releases of a world whose protected entity has this value in every epoch, and the squared
/// distance that is charged between neighbours, by coordinate.
fn world(value: &str) -> (Vec<Vec<i128>>, Vec<f64>) {
    let lab = Lab::new();
    let mut rows = String::from("key,user,x\n");
    for row in 0..RECORDS * ENTITIES {
        let _ = match row % ENTITIES {
            0 => writeln!(rows, "page,protected,{value}"),
            _ => writeln!(rows, "page,u{row},0.5"),
        };
    }
    lab.write("data.csv", rows);
    let pipeline = lab.write(
        "pipeline.toml",
        format!(
            "name = 'late'\nsource.path = 'data.csv'\ncolumns = [{{ name = 'x', lower = -1, upper = 1 }}]\n\
             epochs = {{ records = {ENTITIES}, horizon = {RECORDS} }}\nrelease.strategy = 'identity'\n\
             [key]\ncolumn = 'key'\ndiscover = {{ delta = 1e-8, most = 1, threshold = {} }}\n\
             [entity]\ncolumn = 'user'\nparticipations = {RECORDS}\n\
             [privacy]\nepsilon = 8\ndelta = 1e-4\nunit = 'entity'\n[simulation]\nseed = 1\n",
            // The counts are 100, 199 and 298.
            ENTITIES * RECORDS - ENTITIES / 2
        ),
    );
    let state = lab.path("state");
    finish(&mut run(&pipeline, &state, 1)).succeeded();
    let reader = PublicReader::open(&state).expect("a log");
    let publication = MomentPublication::from_header(reader.header()).expect("a header");
    let sigma = publication.calibration().noise_multiplier;
    let noise = publication.mechanism().moments().noise().iter();
    let charged = noise.map(|noise| noise.scale.map_or(0.0, |scale| scale.sigma()) / sigma).collect();
    (releases(&state).into_iter().map(|release| release.values).collect(), charged)
}

#[test]
fn records_that_enter_a_slot_together_attain_the_charge() {
    let [(ones, charged), (others, _)] = ["1", "-1"].map(world);
    let squares = |epoch: usize| {
        let pairs = ones[epoch].iter().zip(&others[epoch]).zip(&charged);
        let squared = |((one, other), unit): ((&i128, &i128), &f64)| match one.abs_diff(*other) {
            0 => 0.0,
            apart => (apart as f64 / unit).powi(2),
        };
        pairs.map(squared).sum::<f64>()
    };
    let by_epoch: Vec<f64> = (0..ones.len()).map(squares).collect();
    assert_eq!(by_epoch[..2], [0.0, 0.0], "the key is discovered in the last epoch");
    // A tenth of the charge is for the counts that find keys.
    assert!(by_epoch[2] > 0.89 && by_epoch[2] <= 0.9 * (1.0 + 1e-6), "{by_epoch:?} of what is charged");
}
