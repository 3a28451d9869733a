//! Rows that are parsed ahead, here or by another process, give what one reader gives, wherever
//! files are cut.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};

use hushflow_operators::Records;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::control::Control;
use crate::format::unpack::Packing;
use crate::pipeline::Pipeline;
use crate::source::{
    EpochMark, ResumePoint, RowCounters, SourceEvent, SourceReader, range_parsers, range_plan,
};

/// Parses each range in its turn, in this process or in the role of another one, which also takes
/// the rows of the range.
struct InTurn {
    parser: RangeParser,
    plan: RangePlan,
    /// Whether most ranges are parsed by another process.
    elsewhere: bool,
    /// Whether the last range was asked for once, and waited for.
    has_waited: bool,
    parsed: usize,
    /// The range that another process holds.
    held: Option<ParsedRange>,
    taker: RangeTaker,
    result: Option<Vec<u8>>,
    /// Records that another process has taken.
    taken: Sender<Vec<Records>>,
}

impl InTurn {
    /// Whether to wait: every second time only, so that what was asked for is there when it is
    /// asked for again.
    fn waits(&mut self) -> bool {
        self.has_waited = !self.has_waited;
        self.has_waited
    }
}

/// Returns a message as its receiver reads it.
fn sent<T: Serialize + serde::de::DeserializeOwned>(message: &T) -> T {
    bincode::deserialize(&bincode::serialize(message).unwrap()).unwrap()
}

impl RangeSupply for InTurn {
    fn take(&mut self, range: usize) -> Option<ParsedRange> {
        if self.waits() {
            return None;
        }
        self.parsed += 1;
        if !self.elsewhere || self.parsed.is_multiple_of(5) {
            return Some(self.parser.parse(self.plan.stretches[range]));
        }
        let parsed = self.parser.parse_planned(&sent(&self.plan.of_one(range)));
        let extent = sent(&parsed.extent);
        self.held = Some(parsed);
        Some(ParsedRange::elsewhere(extent, 1))
    }

    fn want(&mut self, _range: usize) {}

    fn is_ready(&self, _range: usize) -> bool {
        false
    }

    fn hand_over(&mut self, holder: usize, handover: RangeHandover) {
        assert_eq!(holder, 1);
        let range = self.held.take().expect("a range that was parsed");
        let (records, result) = self.taker.take(sent(&handover), range);
        // The receiver is there as long as the reader.
        let _ = self.taken.send(records.collect());
        self.result = Some(bincode::serialize(&result).unwrap());
    }

    fn take_back(&mut self) -> Option<RangeResult> {
        if self.waits() { None } else { bincode::deserialize(&self.result.take()?).ok() }
    }
}

/// What a record holds: its key, the bits of its values, its entity and its position.
type RecordContent = (u32, Vec<u64>, Option<Entity>, Option<u64>);

/// Missing and malformed fields by column, and the rows of unlisted keys.
type SurveyFacts = (Vec<(u64, u64)>, BTreeMap<Vec<u8>, u64>);

/// The result of reading.
#[derive(Default)]
struct Outcome {
    records: BTreeMap<u64, Vec<RecordContent>>,
    marks: Vec<EpochMark>,
    counters: RowCounters,
    /// Rows read at each event. It must not depend on the parser.
    events: Vec<u64>,
    survey: SurveyFacts,
    error: Option<String>,
    /// Ranges that another process has taken.
    elsewhere: usize,
}

impl Outcome {
    fn add(&mut self, batch: &Records) {
        let width = batch.values.len() / batch.len().max(1);
        for (index, (&key, &epoch)) in batch.keys.iter().zip(&batch.epochs).enumerate() {
            let values = batch.values[index * width..][..width].iter().map(|value| value.to_bits());
            let entity = batch.entities.get(index).copied();
            let record = (key, values.collect(), entity, batch.positions.get(index).copied());
            self.records.entry(epoch).or_default().push(record);
        }
    }

    fn of(mut reader: SourceReader, taken: &Receiver<Vec<Records>>) -> Self {
        let mut outcome = Outcome::default();
        reader.need_records(true);
        loop {
            let event = reader.next_event();
            outcome.events.push(reader.counters().rows);
            match event {
                Ok(SourceEvent::Batch(batch)) => {
                    outcome.add(&batch.records);
                    let mut listed = batch.elsewhere;
                    for range in taken.try_iter() {
                        outcome.elsewhere += 1;
                        for records in range {
                            outcome.add(&records);
                            let rest = listed.keys.split_off(records.len());
                            assert_eq!(std::mem::replace(&mut listed.keys, rest), records.keys);
                            let rest = listed.epochs.split_off(records.len());
                            assert_eq!(std::mem::replace(&mut listed.epochs, rest), records.epochs);
                        }
                    }
                    assert!(listed.is_empty() && listed.epochs.is_empty());
                }
                Ok(SourceEvent::Mark(mark)) => outcome.marks.push(mark),
                Ok(SourceEvent::End) => break,
                Err(error) => {
                    outcome.error = Some(error.to_string());
                    break;
                }
            }
        }
        outcome.records.values_mut().for_each(|records| records.sort());
        outcome.counters = *reader.counters();
        let columns = reader.survey().columns.iter();
        let unlisted = reader.survey().unlisted_keys.clone().into_iter().collect();
        outcome.survey = (columns.map(|column| (column.missing, column.malformed)).collect(), unlisted);
        outcome
    }
}

/// A pipeline over files, read by one reader, or in ranges.
struct Case {
    _directory: TempDir,
    pipeline: Pipeline,
}

impl Case {
    fn new(files: &[(&str, Vec<u8>)], rest: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(directory.path().join(name), content).unwrap();
        }
        let names: Vec<_> = files.iter().map(|(name, _)| *name).collect();
        let neighbours = if rest.contains("event-time") { "replace-one-in-place" } else { "replace-one" };
        let text = format!(
            "name = 'n'\nsource.path = {names:?}\ncolumns = [{{ name = 'x', lower = 0, upper = 1 }}]
            key = {{ column = 'key', values = ['a', 'b'] }}\n{rest}
            release.strategy = 'identity'\n[privacy]\nepsilon = 1\ndelta = 1e-6\nneighbours = '{neighbours}'\n"
        );
        let pipeline = Pipeline::parse(&text, &directory.path().join("p.toml")).unwrap();
        Case { _directory: directory, pipeline }
    }

    fn one_reader(&self, resume: ResumePoint, committed: u64) -> Outcome {
        let reader = SourceReader::resume(&self.pipeline, resume, committed).unwrap();
        Outcome::of(reader, &channel().1)
    }

    fn in_ranges(
        &self,
        stretch: (u64, u64),
        elsewhere: bool,
        resume: ResumePoint,
        committed: u64,
    ) -> Outcome {
        let reader = SourceReader::resume(&self.pipeline, resume, committed).unwrap();
        let read = (&self.pipeline, &self.pipeline.sources[0]);
        let parser = range_parsers(read, &Control::new(), 1).unwrap().remove(0);
        let plan = RangePlan::new(range_plan(read, (1, false)).files, stretch);
        let ((sender, taken), taker) = (channel(), RangeTaker::new(read).unwrap());
        let (plan_of_others, has_waited, held, result) = (plan.clone(), false, None, None);
        let supply = InTurn {
            parser,
            plan: plan_of_others,
            elsewhere,
            has_waited,
            parsed: 0,
            held,
            taker,
            result,
            taken: sender,
        };
        Outcome::of(reader.in_ranges(plan, Box::new(supply), 0), &taken)
    }

    /// Checks that reading in ranges gives the same as one reader. Returns the number of rows, and
    /// of the ranges that another process took.
    fn check(&self, stretch: (u64, u64)) -> (u64, usize) {
        let one = self.one_reader(ResumePoint::START, 0);
        let mut held = 0;
        for elsewhere in [false, true] {
            let found = self.in_ranges(stretch, elsewhere, ResumePoint::START, 0);
            held = found.elsewhere;
            check_equal(&one, &found);
            if one.error.is_some() {
                continue;
            }
            // Any run resumes at the positions of any other.
            for (reader, mark) in [(&one, one.marks.len() / 2), (&found, found.marks.len() / 3)] {
                let Some(mark) = reader.marks.get(mark) else { continue };
                let rest = self.in_ranges(stretch, elsewhere, mark.resume, mark.epoch);
                let alone = self.one_reader(mark.resume, mark.epoch);
                assert!(rest.records == alone.records && rest.counters == alone.counters);
                let later = one.records.range(mark.epoch + 1..);
                let epochs = |records: &BTreeMap<u64, Vec<RecordContent>>| -> Vec<_> {
                    records.iter().map(|(epoch, records)| (*epoch, records.clone())).collect()
                };
                let later: Vec<_> = later.map(|(epoch, records)| (*epoch, records.clone())).collect();
                assert!(epochs(&rest.records) == later, "resumed after epoch {}", mark.epoch);
            }
        }
        (one.counters.rows, held)
    }
}

fn check_equal(one: &Outcome, found: &Outcome) {
    assert_eq!(one.error, found.error);
    let public = |mark: &EpochMark| (mark.epoch, mark.due, mark.rows, mark.resume.clock);
    let marks = |outcome: &Outcome| outcome.marks.iter().map(public).collect::<Vec<_>>();
    assert_eq!(marks(one), marks(found));
    assert!(one.counters == found.counters, "the outcomes of the rows differ");
    assert!(found.elsewhere > 0 || one.events == found.events);
    if one.error.is_none() {
        assert!(one.records == found.records, "the records differ");
        // A single reader does not read the other fields of a row whose clock leaps.
        let is_comparable = one.counters.clock_jump == 0;
        assert!(!is_comparable || one.survey.0 == found.survey.0, "the surveys differ");
        // Other processes don't send unlisted keys.
        assert!(!is_comparable || found.elsewhere > 0 || one.survey == found.survey, "the surveys differ");
    }
}

/// A Parquet file with the fields of CSV rows as texts, in row groups of these numbers of rows.
#[cfg(feature = "parquet")]
fn parquet(text: &[u8], groups: &[usize]) -> Vec<u8> {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::writer::SerializedFileWriter;
    let mut rows = csv::ReaderBuilder::new().flexible(true).from_reader(text);
    let names = rows.headers().unwrap().clone();
    let fields: String = names.iter().map(|name| format!("OPTIONAL BYTE_ARRAY {name} (UTF8);")).collect();
    let schema = parquet::schema::parser::parse_message_type(&format!("message rows {{ {fields} }}"));
    let rows: Vec<_> = rows.records().map(Result::unwrap).collect();
    let mut writer =
        SerializedFileWriter::new(Vec::new(), schema.unwrap().into(), Default::default()).unwrap();
    let mut left = &rows[..];
    for &rows in groups.iter().chain([&usize::MAX]) {
        let (own, rest) = left.split_at(rows.min(left.len()));
        left = rest;
        let mut group = writer.next_row_group().unwrap();
        for at in 0..names.len() {
            let texts: Vec<_> = own.iter().map(|row| row.get(at).filter(|text| !text.is_empty())).collect();
            let levels: Vec<i16> = texts.iter().map(|text| i16::from(text.is_some())).collect();
            let texts: Vec<ByteArray> = texts.into_iter().flatten().map(ByteArray::from).collect();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

/// The text of a CSV file. A row is given by the second of its event, the delay of its arrival in
/// seconds, and a kind that chooses its other fields.
fn csv(rows: &[(u32, u32, u32)], line_end: &str) -> Vec<u8> {
    let mut text = format!("event,arrival,key,note,x,who{line_end}");
    for &(event, delay, kind) in rows {
        let time = |second: u32| format!("1970-01-01T00:{:02}:{:02}Z", second / 60 % 60, second % 60);
        let (key, note, value) = match kind {
            1 => ("a", "\"two\nlines\"".into(), "0.5"),
            2 => ("b", "\"she said \"\"1,2\"\"\n3,4,5,6,7\n\"".into(), "0.25"),
            3 => ("a", "plain".into(), ""),
            4 => ("b", "plain".into(), "much"),
            5 => ("a", "one,field,more".into(), "1"),
            6 => ("b", "5\" pipe".into(), "0.75"),
            7 => ("elsewhere", "\"\"".into(), "1"),
            8 => ("a", format!("{line_end}{line_end}"), "1"),
            9 => ("", "\n".into(), "1"),
            _ => ("a", String::new(), "0.125"),
        };
        // A leap of the clock.
        let arrival = event + delay + if kind == 10 { 1500 } else { 0 };
        text += &format!("{},{},{key},{note},{value},{}{line_end}", time(event), time(arrival), event % 3);
    }
    text.into_bytes()
}

fn ndjson(rows: &[(u32, u32, u32)]) -> Vec<u8> {
    let time = |second: u32| format!("1970-01-01T00:{:02}:{:02}Z", second / 60 % 60, second % 60);
    let row = |&(event, delay, kind): &(u32, u32, u32)| {
        let value = ["0.5", "null", "\"x\"", "[1]", "0.75"][kind as usize % 5];
        let blank = if kind == 6 { " \n\n" } else { "" };
        let (event, arrival) = (time(event), time(event + delay));
        format!(
            "{blank}{{\"event\":\"{event}\",\"arrival\":\"{arrival}\",\"key\":\"b\",\"x\":{value},\"who\":7}}\n"
        )
    };
    rows.iter().map(row).collect::<String>().into_bytes()
}

const ARRIVAL: &str = "epochs = { time = 'event', arrival = 'arrival', start = '1970-01-01', length = '9s', \
    allowed_lateness = '11s', late = 'fold', horizon = 60 }\nsource.largest_jump = '400s'\nsource.missing = 'skip'\n\
    source.malformed = 'skip'";

fn settings() -> Vec<String> {
    let skip = "source.missing = 'skip'\nsource.malformed = 'skip'";
    vec![
        ARRIVAL.into(),
        ARRIVAL.replace("fold", "drop"),
        ARRIVAL.replace("arrival = 'arrival'", "clock = 'event-time'"),
        format!("epochs = {{ records = 7, horizon = 12 }}\n{skip}"),
        format!(
            "epochs = {{ records = 5, horizon = 100 }}\n{}",
            skip.replace("malformed = 'skip'", "malformed = 'reject'")
        ),
        format!(
            "epochs = {{ time = 'event', clock = 'end-of-input', start = '1970-01-01', length = '9s', horizon = 60 }}\n{skip}"
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn ranges_of_any_length_give_what_one_reader_gives(
        rows in prop::collection::vec((0..30u32, 0..40u32, 0..12u32), 0..60),
        stretch in 1..400u64,
        cut in 0..60usize,
        crlf: bool,
        setting in 0..6usize,
        groups in prop::collection::vec(0..20usize, 0..4),
    ) {
        let mut event = 0;
        let rows: Vec<_> = [(0, 0, 0)].iter().chain(&rows).map(|&(step, delay, kind)| {
            event += step % 7;
            (event + step, delay, kind)
        }).collect();
        let (first, last) = rows.split_at(cut.min(rows.len()));
        let line_end = if crlf { "\r\n" } else { "\n" };
        let (setting, stretch) = (&settings()[setting], (stretch, 1 + stretch % 23));
        let files = [csv(first, line_end), csv(last, line_end)];
        let packed = files.each_ref().map(|text| Packing::Gzip.pack(&[text]));
        #[cfg(feature = "parquet")]
        {
            let [a, b] = files.each_ref().map(|text| parquet(text, &groups));
            Case::new(&[("a.parquet", a), ("b.parquet", b)], setting).check(stretch);
        }
        let [a, b] = files;
        Case::new(&[("a.csv", a), ("b.csv", b)], setting).check(stretch);
        let [a, b] = packed;
        Case::new(&[("a.csv.gz", a), ("b.csv.gz", b)], setting).check(stretch);
        let files = [("a.ndjson", ndjson(first)), ("b.ndjson", ndjson(last))];
        Case::new(&files, setting).check(stretch);
    }
}

#[test]
fn guesses_about_quotes_are_mostly_right() {
    // More than a fifth of all bytes lie between quotes, and most lines that begin there don't have
    // the fields of a row.
    let rows: Vec<_> = (0..400).map(|row| (row, 1, if row % 3 == 0 { 2 } else { 1 })).collect();
    let case =
        Case::new(&[("a.csv", csv(&rows, "\n"))], &settings()[3].replace("horizon = 12", "horizon = 100"));
    let (rows, held) = case.check((600, 1));
    assert!(rows == 400 && held >= 10, "{held} ranges were taken elsewhere");
}

/// In these files nothing is guessed.
#[test]
fn rows_of_parquet_and_packed_files_are_parsed_ahead() {
    let rows: Vec<_> = (0..400).map(|row| (row, 1, 0)).collect();
    let setting = settings()[3].replace("horizon = 12", "horizon = 200");
    let half = |which: usize| Packing::Gzip.pack(&[&csv(&rows[200 * which..][..200], "\n")]);
    let mut cases = vec![Case::new(&[("a.csv.gz", half(0)), ("b.csv.gz", half(1))], &setting)];
    #[cfg(feature = "parquet")]
    cases.push(Case::new(&[("a.parquet", parquet(&csv(&rows, "\n"), &[130, 0, 25]))], &setting));
    for case in cases {
        let (rows, held) = case.check((100, 7));
        assert!(rows == 400 && held >= 1, "{held} ranges were taken elsewhere");
    }
}

/// It does not depend on what the rows hold: how many records there are, and how far their epochs
/// are ahead.
#[test]
fn the_length_of_a_message_follows_from_the_number_of_rows() {
    let mut marks = Vec::new();
    let mut lengths = |kinds: [u32; 3], events: u32| {
        let mut rows: Vec<_> = (0..300).map(|row| (row % events, 400, kinds[row as usize % 3])).collect();
        // The last row closes many epochs.
        rows[299] = (0, 1400, 0);
        let setting = ARRIVAL.replace("length = '9s'", "length = '1s'").replace("400s", "9d");
        let setting = setting.replace("horizon = 60", "horizon = 1000").replace("11s", "900s");
        let case = Case::new(&[("a.csv", csv(&rows, "\n"))], &setting);
        let read = (&case.pipeline, &case.pipeline.sources[0]);
        let plan = RangePlan::new(range_plan(read, (1, false)).files, (1 << 20, 1));
        let range = range_parsers(read, &Control::new(), 1).unwrap().remove(0).parse(plan.stretches[0]);
        let mut reader = SourceReader::open(&case.pipeline).unwrap();
        reader.need_records(true);
        let (start, state) = (Position::START, reader.state());
        let handover = RangeHandover { range: 0, plan: plan.of_one(0), start, state };
        let before = bincode::serialized_size(&handover).unwrap();
        let (_, result) = RangeTaker::new(read).unwrap().take(handover, range);
        marks.push(result.marks.iter().filter(|(mark, _)| mark.epoch > 0).count());
        assert!(result.state.counters.rows == 300 && result.fault.is_none());
        (before, bincode::serialized_size(&result).unwrap())
    };
    let expected = lengths([0, 0, 0], 300);
    for (kinds, events) in [([0, 0, 0], 1), ([0, 7, 3], 200), ([7, 7, 7], 30), ([4, 5, 0], 100)] {
        assert_eq!(lengths(kinds, events), expected, "{kinds:?} {events}");
    }
    assert!(marks[0] > 100 && marks.contains(&1), "{marks:?} marks");
}

/// With more open epochs than the state of a clock holds, a resumed run reads some rows again, and
/// misses none.
#[test]
fn no_record_is_missed_however_many_epochs_are_open() {
    let setting = ARRIVAL.replace("length = '9s'", "length = '1s'").replace("11s", "200s");
    let rows: Vec<_> = (0..500).map(|row| (row, row * 37 % 90, 0)).collect();
    let case = Case::new(&[("a.csv", csv(&rows, "\n"))], &setting.replace("horizon = 60", "horizon = 1000"));
    let one = case.one_reader(ResumePoint::START, 0);
    let found = case.in_ranges((600, 1), true, ResumePoint::START, 0);
    assert!(found.elsewhere > 10 && found.records == one.records && found.counters == one.counters);
    assert!(found.marks != one.marks, "at most 64 epochs were open");
    for mark in found.marks.iter().step_by(7) {
        let rest = case.one_reader(mark.resume, mark.epoch).records;
        let later = one.records.range(mark.epoch + 1..);
        assert!(rest.iter().eq(later), "resumed after epoch {}", mark.epoch);
    }
}
