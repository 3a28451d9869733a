//! Fuzzes the files that users write (pipelines, strategies, rows) and the parameters in a log's
//! header.

use super::state::in_memory;
use hushflow::pipeline::Pipeline;
use hushflow::publication::MomentPublication;
use hushflow::source::{EpochMark, SourceEvent, SourceReader};
use hushflow::state::PublicHeader;
use hushflow::strategies::SavedStrategy;
use hushflow::strategies::matrix::read_matrix;
use std::path::Path;

/// Parses a pipeline file.
pub(crate) fn pipeline(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Pipeline::parse(text, Path::new("pipeline.toml")) {
        Ok(pipeline) => drop(pipeline.public_parameters()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Makes a publication from the parameters in a log's header.
pub(crate) fn header(input: &[u8]) {
    // A strategy of thousands of steps takes long to rebuild and tests nothing new.
    if input.len() > 4096 {
        return;
    }
    let header = PublicHeader { parameters: input.to_vec(), private: true };
    if let Ok(publication) = MomentPublication::from_header(&header) {
        let _ = publication.guarantee_holds();
    }
}

/// Reads a strategy file, writes it and reads the copy; reads the same bytes as a matrix in CSV.
pub(crate) fn strategy(input: &[u8]) {
    in_memory(|directory| {
        let path = directory.join("strategy");
        std::fs::write(&path, input).expect("a file");
        if let Ok(saved) = SavedStrategy::load(&path) {
            let copy = directory.join("copy");
            saved.save(&copy).expect("a strategy can be written");
            SavedStrategy::load(&copy).expect("a strategy that was written can be read");
        }
        let _ = read_matrix(&path);
    });
}

/// Reads rows to their end, and again from every mark: the same marks follow.
///
/// The first byte of the input selects the policy for bad rows (1) and epochs by time (2).
pub(crate) fn rows(format: &str, input: &[u8]) {
    let [options, rows @ ..] = input else { return };
    in_memory(|directory| {
        let path = directory.join("rows");
        std::fs::write(&path, rows).expect("a file");
        let policy = if options & 1 == 0 { "skip" } else { "reject" };
        let epochs = match options & 2 {
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
        for (index, mark) in marks.iter().enumerate() {
            let mut again =
                SourceReader::resume(&pipeline, mark.resume, mark.epoch).expect("a position to resume from");
            assert!(
                drain(&mut again) == (marks[index + 1..].to_vec(), true),
                "other marks after {}",
                mark.epoch
            );
        }
    });
}

/// Returns all marks, and whether the rows ended without an error.
fn drain(reader: &mut SourceReader) -> (Vec<EpochMark>, bool) {
    let mut marks = Vec::new();
    loop {
        match reader.next_event() {
            Ok(SourceEvent::Mark(mark)) => marks.push(mark),
            Ok(SourceEvent::Batch(batch)) => assert_eq!(batch.records.values.len(), 2 * batch.len()),
            Ok(SourceEvent::End) => return (marks, true),
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return (marks, false);
            }
        }
    }
}
