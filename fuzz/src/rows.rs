//! Reads rows to their end, and again from every mark: what comes then is what came before.

use super::place::in_memory;
use hushflow::pipeline::Pipeline;
use hushflow::source::{Event, Mark, SourceReader};

/// Reads `input`, which says how in its first byte.
pub fn run(format: &str, input: &[u8]) {
    let [how, rows @ ..] = input else { return };
    in_memory(|directory| {
        let path = directory.join("rows");
        std::fs::write(&path, rows).expect("a file");
        let policy = if how & 1 == 0 { "skip" } else { "reject" };
        let epochs = match how & 2 {
            0 => "records = 3",
            _ => {
                "time = 't', clock = 'event-time', start = '1970-01-01T00:00:00Z', length = '10s', allowed_lateness = '5s'"
            }
        };
        let text = format!(
            "name = 'n'
source = {{ path = 'rows', format = '{format}', missing = '{policy}', malformed = '{policy}' }}
columns = [{{ name = 'x', lower = 0, upper = 1 }}, {{ name = 'y', lower = -1, upper = 1 }}]
key = {{ column = 'k', values = ['a', 'b'] }}
epochs = {{ {epochs}, horizon = 20 }}
privacy = {{ epsilon = 1, delta = 1e-6, neighbours = 'replace-one-in-place' }}
release.strategy = 'identity'
"
        );
        let pipeline = Pipeline::parse(&text, &directory.join("pipeline.toml")).expect("a pipeline");
        let Ok(mut reader) = SourceReader::open(&pipeline) else { return };
        let (marks, ended) = drain(&mut reader);
        if !ended {
            return;
        }
        for (place, mark) in marks.iter().enumerate() {
            let mut again =
                SourceReader::resume(&pipeline, mark.resume, mark.epoch).expect("a place to resume from");
            assert!(
                drain(&mut again) == (marks[place + 1..].to_vec(), true),
                "other marks after {}",
                mark.epoch
            );
        }
    });
}

/// The marks that come, and whether they ended without an error.
fn drain(reader: &mut SourceReader) -> (Vec<Mark>, bool) {
    let mut marks = Vec::new();
    loop {
        match reader.next_event() {
            Ok(Event::Mark(mark)) => marks.push(mark),
            Ok(Event::Batch(batch)) => assert_eq!(batch.records.values.len(), 2 * batch.len()),
            Ok(Event::End) => return (marks, true),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return (marks, false);
            }
        }
    }
}
