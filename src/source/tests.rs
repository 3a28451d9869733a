//! Tests sources on files: bad rows, restarts, and lateness compared with a plain computation.

mod packed;

use std::collections::BTreeMap;
use std::path::Path;

use hushflow_mechanism::sensitivity::Neighbours;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::pipeline::{MissingPolicy, Pipeline, RowPolicies, RowPolicy};
use crate::time::parse_time;

const BY_COUNT: &str = "epochs = { records = 2, horizon = 100 }";

/// A pipeline over the given files with one column `x`, and the directory that holds them.
fn pipeline(files: &[(&str, &[u8])], rest: &str) -> (TempDir, Pipeline) {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(directory.path().join(name), content).unwrap();
    }
    let names: Vec<_> = files.iter().map(|(name, _)| *name).collect();
    // Only public event times may move the clock.
    let neighbours = if rest.contains("event-time") { "replace-one-in-place" } else { "replace-one" };
    // The limit of jumps has its own tests.
    let moved = rest.contains("arrival =") || rest.contains("event-time");
    let jump = if moved { "source.largest_jump = '4000000d'\n" } else { "" };
    let text = format!(
        "name = 'n'\nsource.path = {names:?}\n{jump}columns = [{{ name = 'x', lower = 0, upper = 1 }}]
        privacy = {{ epsilon = 1, delta = 1e-6, neighbours = '{neighbours}' }}\nrelease.strategy = 'identity'\n{rest}"
    );
    let pipeline = Pipeline::parse(&text, &directory.path().join("p.toml")).unwrap();
    (directory, pipeline)
}

/// The sorted records of every epoch: (key, values as bits).
type EpochRecords = BTreeMap<u64, Vec<(u32, Vec<u64>)>>;

/// Reads to the end: returns the records, and the marks with the number of rows before them.
fn drain(reader: &mut SourceReader) -> Result<(EpochRecords, Vec<EpochMark>), SourceError> {
    let (mut records, mut marks) = (EpochRecords::new(), Vec::<EpochMark>::new());
    loop {
        match reader.next_event()? {
            SourceEvent::End => break,
            SourceEvent::Mark(mark) => marks.push(mark),
            SourceEvent::Batch(batch) => {
                let batch = batch.records;
                let dimension = batch.values.len() / batch.len().max(1);
                let rows = batch.values.chunks(dimension.max(1));
                for ((&key, &epoch), values) in batch.keys.iter().zip(&batch.epochs).zip(rows) {
                    assert!(marks.last().is_none_or(|mark| epoch > mark.epoch), "epoch {epoch} had closed");
                    let bits = values.iter().map(|value| value.to_bits()).collect();
                    records.entry(epoch).or_default().push((key, bits));
                }
            }
        }
    }
    records.values_mut().for_each(|records| records.sort());
    Ok((records, marks))
}

fn values(records: &EpochRecords) -> Vec<f64> {
    records.values().flatten().flat_map(|(_, bits)| bits.iter().map(|&bits| f64::from_bits(bits))).collect()
}

/// Reads one file and expects these values and these numbers of all, missing and malformed rows.
fn check_rows(name: &str, content: &[u8], expected: &[f64], counts: [u64; 3]) {
    let (_directory, pipeline) = pipeline(&[(name, content)], BY_COUNT);
    let mut reader = SourceReader::open(&pipeline).unwrap();
    let (records, _) = drain(&mut reader).unwrap();
    let shown = String::from_utf8_lossy(content);
    let shown: String = shown.chars().take(80).collect();
    assert_eq!(values(&records), expected, "{shown:?}");
    let counters = reader.counters();
    assert_eq!([counters.rows, counters.missing, counters.malformed], counts, "{shown:?}");
}

/// Reads one file, rejecting bad rows, and expects this message after the file's name.
fn check_error(name: &str, content: &[u8], message: &str) {
    let (directory, mut pipeline) = pipeline(&[(name, content)], BY_COUNT);
    pipeline.rows = RowPolicies { missing: MissingPolicy::Reject, malformed: RowPolicy::Reject };
    let outcome = SourceReader::open(&pipeline).and_then(|mut reader| drain(&mut reader));
    let error = outcome.err().map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(error, format!("{}{message}", directory.path().join(name).display()));
}

#[test]
fn csv_rows_are_read_or_counted() {
    let check = |content: &[u8], expected: &[f64], counts| check_rows("a.csv", content, expected, counts);
    check(b"x\n1\n2\n", &[1.0, 2.0], [2, 0, 0]);
    check(b"x\n1\n2", &[1.0, 2.0], [2, 0, 0]);
    check(b"x\r\n1\r\n\r\n2\r\n", &[1.0, 2.0], [2, 0, 0]);
    check(b"\xef\xbb\xbfx,y\n1,a\n", &[1.0], [1, 0, 0]);
    check(b"y,x\n\"a\nb \"\"c\"\"\",1\n,2\n", &[1.0, 2.0], [2, 0, 0]);
    check(b"x,y\n,a\n 3 ,b\n\"\",c\n", &[3.0], [3, 2, 0]);
    check(b"x,y\n1\n2,b\n3,c,d\n", &[2.0], [3, 0, 2]);
    check(b"x\nabc\nNaN\ninf\n1e309\n1e308\n1\0\n\xe9\n-0\n", &[1e308, -0.0], [8, 0, 6]);
    check(b"x,y\n1,caf\xe9\n2,\0\n", &[1.0, 2.0], [2, 0, 0]);
    check(b"x\n", &[], [0, 0, 0]);
    check(b"x,y\n1,\"open\n2,b\n", &[1.0], [1, 0, 0]);
}

#[test]
fn rows_count_for_the_columns_that_they_have() {
    let text = b"x,y\n1,2\n,3\n4,NA\n,nan\n5\n";
    let (_directory, mut pipeline) = pipeline(&[("a.csv", text)], BY_COUNT);
    let other = pipeline.columns[0].clone();
    pipeline.columns.push(crate::pipeline::Column { name: "y".into(), ..other });
    let mut read = |missing, malformed| {
        pipeline.rows = RowPolicies { missing, malformed };
        let mut reader = SourceReader::open(&pipeline).unwrap();
        let records = drain(&mut reader).map(|(records, _)| values(&records)).ok();
        (records, [reader.counters().missing, reader.counters().malformed])
    };
    let same = |found: &[f64], expected: &[f64]| {
        found.iter().zip(expected).all(|(x, y)| x == y || x.is_nan() && y.is_nan())
            && found.len() == expected.len()
    };
    let (records, counts) = read(MissingPolicy::ByColumn, RowPolicy::Skip);
    // Sorted within an epoch of two rows; the last row has too few fields.
    let expected = [1.0, 2.0, f64::NAN, 3.0, 4.0, f64::NAN];
    assert!(same(&records.unwrap(), &expected));
    assert_eq!(counts, [3, 1]);
    assert_eq!(read(MissingPolicy::ByColumn, RowPolicy::Reject).0, None);
    assert_eq!(read(MissingPolicy::Skip, RowPolicy::Skip), (Some(vec![1.0, 2.0]), [3, 1]));
}

#[test]
fn ndjson_rows_are_read_or_counted() {
    let check = |content: &[u8], expected: &[f64], counts| check_rows("a.ndjson", content, expected, counts);
    check(b"{\"x\": 1}\n{\"x\":2.5e0}\n", &[1.0, 2.5], [2, 0, 0]);
    check(b"\xef\xbb\xbf{\"x\": 1}\r\n\r\n{\"x\": 2}", &[1.0, 2.0], [2, 0, 0]);
    check(b"{\"y\": [1, {\"x\": 5}], \"x\": 1}\n", &[1.0], [1, 0, 0]);
    check(b"{\"x\": null}\n{}\n{\"x\": \"\"}\n", &[], [3, 3, 0]);
    check(b"{\"x\": 1, \"x\": 2}\n{\"x\": null, \"x\": 2}\n", &[], [2, 0, 2]);
    check(b"{\"x\": true}\n{\"x\": [1]}\n{\"x\": \"a\"}\n{\"x\": 1e999}\n{\"x\": NaN}\n", &[], [5, 0, 5]);
    check(b"{\"x\": \"7\"}\n{\"\\u0078\": \"\\u0038\"}\n", &[7.0, 8.0], [2, 0, 0]);
    check(b"[1]\n5\n{\"x\": 1\n{\"x\": 1} {\"x\": 2}\n\xff\n{\"x\": 3}\n", &[3.0], [6, 0, 5]);
    check(b"", &[], [0, 0, 0]);
}

#[test]
fn with_public_counts_a_record_counts_for_any_values() {
    let check = |name: &str, content: &[u8], expected: usize| {
        let rest = format!("{BY_COUNT}\nkey = {{ column = 'k', values = ['a'] }}");
        let (_directory, mut pipeline) = pipeline(&[(name, content)], &rest);
        pipeline.privacy.neighbours = Neighbours::ReplaceOneInPlace;
        let (records, _) = drain(&mut SourceReader::open(&pipeline).unwrap()).unwrap();
        let values = values(&records);
        assert_eq!(values.len(), expected);
        assert!(values.iter().all(|value| *value == 1.0 || value.is_nan()), "{values:?}");
    };
    check("a.csv", b"k,x\na,1\na,secret\na,\na,inf\nb,1\n,1\na\n", 4);
    check("a.ndjson", b"{\"k\":\"a\",\"x\":1}\n{\"k\":\"a\"}\n{\"k\":\"a\",\"x\":[1]}\n{\"x\":1}\n", 3);
}

#[test]
fn errors_name_file_line_column_and_kind_but_no_value() {
    let csv = |content: &[u8], message: &str| check_error("a.csv", content, message);
    let remedy = ": correct or remove the row, or let [source] skip such rows";
    csv(b"", ": the file is empty: expected a header row with the columns' names");
    // The first line may be a row, so the message must not quote it, not even a near match.
    for header in [b"y,z\n1,2\n", b"y,X\n1,2\n"] {
        let no_column = ":1: none of the 2 columns that line 1 names is \"x\": names must agree to the letter; correct \
                         the name, or begin the file with a header";
        csv(header, no_column);
    }
    csv(b"x,x\n1,2\n", ":1: the header has more than one column \"x\": rename one of them");
    csv(b"x\r\n1\r\n\r\nsecret\r\n", &format!(":4: column \"x\": expected a number{remedy}"));
    csv(b"y,x\n\"\n\n\",1\na,inf\n", &format!(":5: column \"x\": expected a finite number{remedy}"));
    csv(b"y,x\na,\n", &format!(":2: column \"x\": the value is missing{remedy}"));
    csv(b"y,x\nsecret\n", &format!(":2: the row does not have as many fields as the header{remedy}"));
    let ndjson = |content: &[u8], message: &str| check_error("a.ndjson", content, message);
    ndjson(b"{\"x\":1}\n\nsecret\n", &format!(":3: the line is not a JSON object{remedy}"));
    ndjson(b"{\"x\":1,\"x\":1}\n", &format!(":1: column \"x\": duplicate field{remedy}"));
    ndjson(b"{\"x\":{}}\n", &format!(":1: column \"x\": expected a text or a number{remedy}"));
}

#[test]
fn a_record_without_end_is_an_error_in_bounded_memory() {
    let long = ":2: the record that begins here is longer than 1048576 bytes: look for a quote that is not closed, or a line \
                that does not end";
    let mut csv = b"x\n\"".to_vec();
    csv.resize(4 << 20, b'1');
    check_error("a.csv", &csv, long);
    let mut commas = b"x\n".to_vec();
    commas.resize(4 << 20, b',');
    check_error("a.csv", &commas, long);
    let mut ndjson = b"{\"x\": 1}\n{\"x\": ".to_vec();
    ndjson.resize(4 << 20, b'1');
    check_error("a.ndjson", &ndjson, long);
    let mut header = b"x,".to_vec();
    header.resize(4 << 20, b'y');
    check_error("a.csv", &header, &long.replace(":2:", ":1:"));
}

#[test]
fn files_follow_each_other_as_one_stream() {
    let files: [(&str, &[u8]); 3] =
        [("a.csv", b"x,y\n1,a\n2,a\n3,a"), ("b.csv", b"y,x\n"), ("c.csv", b"y,x\nb,4\nb,5\n")];
    let (_directory, pipeline) = pipeline(&files, BY_COUNT);
    let (records, marks) = drain(&mut SourceReader::open(&pipeline).unwrap()).unwrap();
    assert_eq!(values(&records), [1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(records[&2].len(), 2);
    assert_eq!(marks.iter().map(|mark| mark.epoch).collect::<Vec<_>>(), [1, 2, 3]);
    let positions: Vec<_> = marks
        .iter()
        .map(|mark| (mark.resume.position.part, mark.resume.position.offset, mark.resume.position.row))
        .collect();
    assert_eq!(positions, [(0, 12, 4), (2, 8, 3), (2, 12, 4)]);
}

#[test]
fn keys_are_numbered_as_listed() {
    let rest = format!("{BY_COUNT}\nkey = {{ column = 'k', values = ['b', 'a', '7'] }}");
    let check = |name, content: &[u8]| {
        let (_directory, pipeline) = pipeline(&[(name, content)], &rest);
        let mut reader = SourceReader::open(&pipeline).unwrap();
        let (records, _) = drain(&mut reader).unwrap();
        let keys: Vec<_> = records.values().flatten().map(|(key, _)| *key).collect();
        assert_eq!(keys, [0, 1, 2]);
        assert_eq!([reader.counters().unknown_key, reader.counters().missing], [1, 1]);
    };
    check("a.csv", b"k,x\na,1\nb,1\nc,1\n,1\n7,1\n");
    let ndjson = br#"{"k":"a","x":1}
{"k":"b","x":1}
{"k":"c","x":1}
{"x":1}
{"k":7,"x":1}"#;
    check("a.ndjson", ndjson);
}

const BY_ARRIVAL: &str = "epochs = { time = 'event', arrival = 'arrival', start = '1970-01-01', length = '10s', \
    allowed_lateness = '5s', horizon = 1000000000000 }";

/// A file with rows (event, arrival) in seconds of 1970, numbered from 0 in `x`.
fn timed(rows: &[(u32, u32)]) -> Vec<u8> {
    let time = |second: u32| {
        let (minute, hour) = (second / 60 % 60, second / 3600 % 24);
        format!("1970-01-{:02}T{hour:02}:{minute:02}:{:02}Z", 1 + second / 86_400, second % 60)
    };
    let row = |(number, &(event, arrival))| format!("{},{},{number}\n", time(event), time(arrival));
    let rows: String = rows.iter().enumerate().map(row).collect();
    format!("event,arrival,x\n{rows}").into_bytes()
}

#[test]
fn a_bad_row_moves_the_clock_like_a_good_one() {
    let check = |bad: &str| {
        let content = format!(
            "event,arrival,x\n1970-01-01T00:00:01Z,1970-01-01T00:00:01Z,0\n{bad}\n\
             1970-01-01T00:00:02Z,1970-01-01T00:00:01Z,2\n"
        );
        let (_directory, pipeline) = pipeline(&[("a.csv", content.as_bytes())], BY_ARRIVAL);
        let (records, _) = drain(&mut SourceReader::open(&pipeline).unwrap()).unwrap();
        assert_eq!(records[&2].last().map(|(_, bits)| bits[0]), Some(2f64.to_bits()), "{bad}");
    };
    check("1970-01-01T00:00:16Z,1970-01-01T00:00:16Z,1");
    check("1970-01-01T00:00:16Z,1970-01-01T00:00:16Z,secret");
    check("1970-01-01T00:00:16Z,1970-01-01T00:00:16Z,");
    check("never,1970-01-01T00:00:16Z,1");
}

#[test]
fn a_leap_of_the_clock_closes_its_epochs_at_once() {
    let content = b"event,arrival,x\n1970-01-01,1970-01-01,1\n9000-01-01,9000-01-01,2\n";
    let (_directory, pipeline) = pipeline(&[("a.csv", content)], BY_ARRIVAL);
    let (records, marks) = drain(&mut SourceReader::open(&pipeline).unwrap()).unwrap();
    let last = 1 + u64::try_from(parse_time("9000-01-01").unwrap()).unwrap() / 10_000_000;
    assert_eq!(records.keys().copied().collect::<Vec<_>>(), [1, last]);
    assert_eq!(marks.iter().map(|mark| mark.epoch).collect::<Vec<_>>(), [last - 2, last - 1, last]);
}

#[test]
fn the_stream_is_over_after_the_horizon() {
    let (_directory, pipeline) =
        pipeline(&[("a.csv", b"x\n1\n2\n3\n")], "epochs = { records = 1, horizon = 2 }");
    let mut reader = SourceReader::open(&pipeline).unwrap();
    let (records, marks) = drain(&mut reader).unwrap();
    assert_eq!((values(&records), marks.len(), reader.counters().rows), (vec![1.0, 2.0], 2, 2));
    assert!(matches!(reader.next_event(), Ok(SourceEvent::End)));
}

#[test]
fn an_input_that_cannot_be_read_again_counts_no_row_twice() {
    let content = timed(&[(1, 1), (25, 3), (12, 12), (2, 17), (13, 18), (27, 27)]);
    let (_directory, pipeline) = pipeline(&[("a.csv", &content)], BY_ARRIVAL);
    let (_, marks) = drain(&mut SourceReader::open(&pipeline).unwrap()).unwrap();
    assert_eq!(marks[0].epoch, 1);
    // The same rows are piped in again: those of epoch 1 are dropped, including the early and the
    // late one.
    let resume = ResumePoint { clock: Clock { row: 0, ..marks[0].resume.clock }, ..ResumePoint::START };
    let mut reader = SourceReader::resume(&pipeline, resume, 1).unwrap();
    reader.epochs.counted_before = 1;
    let (records, _) = drain(&mut reader).unwrap();
    assert_eq!(values(&records), [2.0, 4.0, 5.0]);
    assert_eq!(reader.counters().already_closed, 3);
}

#[test]
fn rows_appended_after_the_end_join_the_next_epoch() {
    let check = |rest: &str, whole: &[u8], cut: usize, expected: &[f64]| {
        let (directory, pipeline) = pipeline(&[("a.csv", &whole[..cut])], rest);
        let (_, marks) = drain(&mut SourceReader::open(&pipeline).unwrap()).unwrap();
        let last = marks.last().unwrap();
        std::fs::write(directory.path().join("a.csv"), whole).unwrap();
        let mut reader = SourceReader::resume(&pipeline, last.resume, last.epoch).unwrap();
        let (records, _) = drain(&mut reader).unwrap();
        assert_eq!(
            (values(&records), records.keys().next().copied()),
            (expected.to_vec(), Some(last.epoch + 1))
        );
    };
    let whole = timed(&[(1, 1), (12, 12), (13, 13), (3, 14), (21, 21)]);
    let cut = whole.len() - timed(&[(13, 13), (3, 14), (21, 21)]).len() + timed(&[]).len();
    check(BY_ARRIVAL, &whole, cut, &[2.0, 3.0, 4.0]);
    check(BY_COUNT, b"x\n1\n2\n3\n4\n5\n", 8, &[4.0, 5.0]);
}

#[test]
fn a_file_that_became_shorter_is_refused() {
    let (directory, pipeline) = pipeline(&[("a.csv", b"x\n1\n2\n3\n")], BY_COUNT);
    let (_, marks) = drain(&mut SourceReader::open(&pipeline).unwrap()).unwrap();
    std::fs::write(directory.path().join("a.csv"), "x\n1\n").unwrap();
    let error = SourceReader::resume(&pipeline, marks[0].resume, 1).err().unwrap().to_string();
    assert!(error.contains("has 4 bytes, fewer than were read before"), "{error}");
}

/// Stops the run after the first and after the last epoch that each mark closes, and resumes there.
fn check_resume(files: &[(&str, &[u8])], rest: &str) {
    let (_directory, pipeline) = pipeline(files, rest);
    let (whole, marks) = drain(&mut SourceReader::open(&pipeline).unwrap()).unwrap();
    let mut closed = 0;
    for (index, mark) in marks.iter().enumerate() {
        for committed in [closed + 1, mark.epoch] {
            let mut reader = SourceReader::resume(&pipeline, mark.resume, committed).unwrap();
            let (rest, later) = drain(&mut reader).unwrap();
            let expected: EpochRecords =
                whole.clone().into_iter().filter(|(epoch, _)| *epoch > committed).collect();
            assert_eq!(rest, expected, "resumed after epoch {committed}");
            if committed == mark.epoch {
                assert_eq!(later, marks[index + 1..], "marks after epoch {committed}");
            }
        }
        closed = mark.epoch;
    }
    assert!(whole.keys().all(|&epoch| epoch <= closed));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_run_cut_at_any_mark_gives_the_same_records(
        rows in prop::collection::vec((0..200u32, 0..60u32, 0..20u32), 0..60),
        lateness in 0..30u32,
        cut in 0..60usize,
        crlf: bool,
    ) {
        // The first row is early, because a clock that begins after the last epoch, or ends before
        // the first one, is an error.
        let rows = [(0, 0, 0)].iter().chain(&rows).chain(&[(40, 0, 0)]);
        let rows: Vec<_> = rows.map(|&(event, delay, noise)| (event, event / 2 + delay + noise)).collect();
        let (first, last) = rows.split_at(cut.min(rows.len()));
        let [mut a, mut b] = [timed(first), timed(last)];
        if crlf {
            for file in [&mut a, &mut b] {
                *file = String::from_utf8_lossy(file).replace('\n', "\r\n").into_bytes();
            }
        }
        let files: [(&str, &[u8]); 2] = [("a.csv", &a), ("b.csv", &b)];
        let time = "time = 'event', start = '1970-01-01T00:00:15Z', length = '7s'";
        for clock in ["arrival = 'arrival'", "clock = 'event-time'"] {
            for late in ["fold", "drop"] {
                let policy = format!("allowed_lateness = '{lateness}s', late = '{late}'");
                check_resume(&files, &format!("epochs = {{ {time}, {clock}, {policy}, horizon = 20 }}"));
            }
        }
        check_resume(&files, &format!("epochs = {{ {time}, clock = 'end-of-input', horizon = 20 }}"));
        check_resume(&files, "epochs = { records = 7, horizon = 5 }");
    }
}

/// The real file, sorted by arrival: the numbers of late rows equal those of a plain computation.
#[test]
fn lateness_of_real_flights_agrees_with_a_plain_computation() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/flights.toml");
    let csv = std::fs::read_to_string(path.with_file_name("flights_jan2013.csv")).unwrap();
    let times = |line: &str| {
        let mut fields = line.split(',').map(|field| parse_time(field).unwrap_or_default());
        (fields.next().unwrap_or_default(), fields.next().unwrap_or_default())
    };
    let rows: Vec<(i64, i64)> = csv.lines().skip(1).map(times).collect();
    let (start, hour) = (parse_time("2013-01-01T05:00:00Z").unwrap(), 3_600_000_000);
    let mut fractions = Vec::new();
    for lateness in [1, 2, 4, 6] {
        // Hourly epochs: a row is late if its hour had ended `lateness` before the newest arrival.
        let late = |&&(event, arrival): &&(i64, i64)| {
            let end = start + ((event - start).div_euclid(hour) + 1) * hour;
            end + lateness * hour <= arrival
        };
        let expected = rows.iter().filter(late).count() as u64;
        let text = Pipeline::EXAMPLE
            .replace("length = \"1d\"", "length = \"1h\"\nlate = \"drop\"")
            .replace("6h", &format!("{lateness}h"))
            .replace("horizon = 32", "horizon = 800");
        let mut reader = SourceReader::open(&Pipeline::parse(&text, &path).unwrap()).unwrap();
        let (records, _) = drain(&mut reader).unwrap();
        assert_eq!(reader.counters().late, expected, "{lateness} h");
        assert_eq!(records.values().map(Vec::len).sum::<usize>() as u64, rows.len() as u64 - expected);
        fractions.push(expected as f64 / rows.len() as f64);
    }
    assert!(fractions[0] > 0.5 && fractions.is_sorted_by(|a, b| a > b), "{fractions:?}");
}

#[test]
fn the_remainder_of_a_row_already_read_is_no_row() {
    let check = |name: &str, [before, after]: [&str; 2], expected: &[f64], malformed| {
        let (directory, pipeline) = pipeline(&[(name, before.as_bytes())], BY_COUNT);
        let (mut first, marks) = drain(&mut SourceReader::open(&pipeline).unwrap()).unwrap();
        let EpochMark { epoch, resume, .. } = marks.last().copied().unwrap();
        std::fs::write(directory.path().join(name), format!("{before}{after}")).unwrap();
        let mut reader = SourceReader::resume(&pipeline, resume, epoch).unwrap();
        first.append(&mut drain(&mut reader).unwrap().0);
        assert_eq!(values(&first), expected, "{before:?} {after:?}");
        assert_eq!(reader.counters().malformed, malformed, "{before:?} {after:?}");
    };
    check("a.csv", ["x\n0.5\n0.625", "125\n0.75\n"], &[0.5, 0.625, 0.75], 1);
    check("a.csv", ["x\n0.5\n0.625", "\n0.75\n"], &[0.5, 0.625, 0.75], 0);
    check("a.csv", ["x\n0.5\n0.625\n", "0.75"], &[0.5, 0.625, 0.75], 0);
    check("a.csv", ["x\r\n0.5\r\n", "0.75"], &[0.5, 0.75], 0);
    check("a.csv", ["x\n0.5\n0.625", ""], &[0.5, 0.625], 0);
    // No part of the partial JSON line had counted.
    check("a.ndjson", ["{\"x\":0.5}\n{\"x\":", "1}\n{\"x\":0.75}\n"], &[0.5, 0.75], 1);
}

/// Timing of events and rows named by marks depend on arrivals alone, not on the contents of rows
/// or on where an earlier run stopped.
#[test]
fn row_contents_do_not_affect_delivery_times() {
    const ROWS: usize = 20_000;
    let rest = "source.missing = 'skip'\nsource.malformed = 'skip'\n[epochs]\ntime = 't'\narrival = 'a'\nstart = '1970-01-01'\n\
         length = '3000s'\nallowed_lateness = '600s'\nhorizon = 100\n";
    let time = |second: usize| {
        format!("1970-01-01T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
    };
    let read = |unusable: &[usize], early: &[usize]| {
        let row = |second: usize| {
            let value = if unusable.contains(&second) { ["N/A", "x.y"][second % 2] } else { "0.5" };
            let event = if early.contains(&second) { second + 2999 } else { second };
            format!("{},{},{value}\n", time(event), time(second))
        };
        let content: String = ["t,a,x\n".into()].into_iter().chain((0..ROWS).map(row)).collect();
        let (_directory, pipeline) = pipeline(&[("a.csv", content.as_bytes())], rest);
        let mut reader = SourceReader::open(&pipeline).unwrap();
        let (mut given, mut closed, mut resumes) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let event = reader.next_event().unwrap();
            given.push(reader.counters().rows);
            match event {
                SourceEvent::Batch(_) => {}
                SourceEvent::Mark(mark) => {
                    closed.push((mark.epoch, mark.rows, mark.read));
                    resumes.push(mark);
                }
                SourceEvent::End => break,
            }
        }
        for EpochMark { epoch, resume, .. } in resumes {
            let mut later = SourceReader::resume(&pipeline, resume, epoch).unwrap();
            let (_, marks) = drain(&mut later).unwrap();
            let marks: Vec<_> = marks.into_iter().map(|mark| (mark.epoch, mark.rows, mark.read)).collect();
            assert!(closed.ends_with(&marks) && marks.len() + epoch as usize == closed.len());
        }
        given.dedup();
        (given, closed)
    };
    let whole: Vec<usize> = (0..6000).collect();
    let plain = read(&[], &[]);
    assert_eq!(
        (plain.1[0].0, plain.1[0].1),
        (1, 3601),
        "the first epoch is closed by the row that comes 600 s after its end"
    );
    for (unusable, early) in [
        (&[17][..], &[][..]),
        (&[1, 2, 3, 5, 7, 4095, 4096], &[]),
        (&whole, &[]),
        (&[], &[10, 4000]),
        (&[9000], &[8999]),
    ] {
        assert_eq!(read(unusable, early), plain, "{} {early:?}", unusable.len());
    }
}
