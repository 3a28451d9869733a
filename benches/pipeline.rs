//! How fast rows become records: the whole reader beside its floor, the CSV crate's loop that looks at no field.
//! The real flights file ten times over, four columns, a key, event and arrival times.

use std::path::{Path, PathBuf};

use divan::counter::{BytesCount, ItemsCount};
use hushflow::pipeline::Pipeline;
use hushflow::source::{Event, SourceReader};

const COPIES: usize = 10;

fn main() {
    divan::main();
}

fn flights() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/flights_jan2013.csv")
}

fn counted(bencher: divan::Bencher<'_, '_>, read: impl Fn() -> usize + Sync) {
    let bytes = std::fs::metadata(flights()).map_or(0, |file| file.len()) * COPIES as u64;
    bencher.counter(BytesCount::new(bytes)).counter(ItemsCount::new(read())).bench(read);
}

#[divan::bench]
fn csv_byte_records_alone(bencher: divan::Bencher<'_, '_>) {
    counted(bencher, || {
        let mut record = csv::ByteRecord::new();
        let mut rows = 0;
        for _ in 0..COPIES {
            let mut reader = csv::Reader::from_path(flights()).expect("the example data are there");
            while reader.read_byte_record(&mut record).expect("the example data are CSV") {
                rows += 1;
            }
        }
        rows
    });
}

#[divan::bench]
fn source_reader(bencher: divan::Bencher<'_, '_>) {
    let files = vec![format!("{:?}", flights()); COPIES].join(", ");
    let columns =
        ["arr_delay", "air_time"].map(|name| format!("[[columns]]\nname = {name:?}\nlower = 0\nupper = 9\n"));
    let text = Pipeline::EXAMPLE
        .replace("\"flights_jan2013.csv\"", &format!("[{files}]"))
        .replace("[key]", &format!("{}[key]", columns.concat()))
        .replace("horizon = 32", "horizon = 1000");
    let pipeline = Pipeline::parse(&text, Path::new("bench.toml")).expect("the pipeline is valid");
    counted(bencher, || {
        let mut reader = SourceReader::open(&pipeline).expect("the example data are there");
        let mut records = 0;
        loop {
            match reader.next_event().expect("the example data are clean") {
                Event::Batch(batch) => records += divan::black_box(batch).len(),
                Event::Mark(_) => {}
                Event::End => return records,
            }
        }
    });
}
