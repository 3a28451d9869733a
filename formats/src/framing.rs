//! Record boundaries in a stream: the units that are made durable and acknowledged.
//!
//! One pass over the bytes, ignoring their meaning. For CSV it is the state machine of the parser
//! that reads them later (`csv-core` as used by [`super::csv`]), so both agree on every text,
//! well-formed or not. Blocks of plain lines, the usual case, are counted without the state
//! machine.

use super::row::RECORD_LIMIT;
use super::{Delimiter, Format};

/// Follows a stream from its first byte.
pub struct Framing {
    grammar: FramingTable,
    state: FramingState,
    /// Number of completed records.
    pub records: u64,
    /// The line of the next byte, from 1.
    line: u64,
    /// The line where the current record began.
    began: u64,
    /// Bytes of the current record with the blanks before it; for NDJSON, of the current line.
    length: usize,
}

/// State of the framing before the next byte.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FramingState {
    /// No record yet, or only blanks of one.
    Between,
    /// The first byte of a field, except a record's first field.
    FieldStart,
    Plain,
    Quoted,
    /// After a quote in a quoted field: its end, or the first of two.
    QuoteInQuoted,
}

use FramingState::{Between, FieldStart, Plain, QuoteInQuoted, Quoted};

/// A state machine in tables, for speed. Every byte passes through it, except runs of bytes without
/// marks.
struct FramingTable {
    /// The bytes that end a line or open quotes, possibly repeated.
    marks: [u8; 3],
    /// Bytes that no plain line contains.
    doubtful: [u8; 3],
    /// Byte that no plain line ends with.
    doubtful_at_end: u8,
    /// Class of every byte: 0, 1, 2, or 3 for a line end.
    class: [u8; 256],
    /// Next state by state and class.
    next: [[FramingState; 4]; 5],
}

const fn csv(delimiter: Delimiter) -> FramingTable {
    FramingTable {
        marks: *b"\"\r\n",
        doubtful: *b"\"\r\r",
        doubtful_at_end: b'"',
        class: classes(b"\"", &[delimiter.byte()], b"\r\n"),
        next: [
            [Plain, Quoted, FieldStart, Between],
            [Plain, Quoted, FieldStart, Between],
            [Plain, Plain, FieldStart, Between],
            [Quoted, QuoteInQuoted, Quoted, Quoted],
            [Plain, Quoted, FieldStart, Between],
        ],
    }
}

const NDJSON: FramingTable = FramingTable {
    marks: *b"\n\n\n",
    doubtful: *b"\t\r\x0c",
    doubtful_at_end: b' ',
    class: classes(b" \t\r\x0c", b"", b"\n"),
    next: [
        [Plain, Between, Plain, Between],
        [Plain; 4],
        [Plain, Plain, Plain, Between],
        [Plain; 4],
        [Plain; 4],
    ],
};

/// Bytes processed together.
const STRIDE: usize = 32;

/// Size of a block whose lines are counted together if they are plain: smaller than a record that
/// is too long.
const BLOCK: usize = 1 << 13;

/// Counts of a block of plain lines. They exclude the record of the last line, which has not ended.
struct LineCounts {
    /// Lines that have ended.
    ended: u64,
    /// Ended lines after the first that were not empty.
    full: u64,
}

impl FramingTable {
    /// Counts the lines of a block if all are plain and one has ended. Then `\n` ends a record
    /// unless another `\n`, or nothing, precedes it. It has no branch per byte, so that the
    /// compiler vectorises it.
    fn plain_lines(&self, block: &[u8]) -> Option<LineCounts> {
        let (&first, rest) = block.split_first()?;
        let is_doubtful = |byte: u8| self.doubtful.iter().fold(false, |any, &mark| any | (byte == mark));
        let (mut ended, mut full) = (u64::from(first == b'\n'), 0);
        let mut doubtful = is_doubtful(first);
        // Few enough for a counter of one byte.
        for (befores, bytes) in block.chunks(STRIDE * 4).zip(rest.chunks(STRIDE * 4)) {
            let (mut ends, mut ends_of_full) = (0_u8, 0_u8);
            for (&before, &byte) in befores.iter().zip(bytes) {
                let end = byte == b'\n';
                ends = ends.wrapping_add(u8::from(end));
                ends_of_full = ends_of_full.wrapping_add(u8::from(end & (before != b'\n')));
                doubtful |= is_doubtful(byte) | (end & (before == self.doubtful_at_end));
            }
            ended += u64::from(ends);
            full += u64::from(ends_of_full);
        }
        (ended > 0 && !doubtful).then_some(LineCounts { ended, full })
    }

    fn after(&self, state: FramingState, byte: u8) -> FramingState {
        self.next[state as usize][usize::from(self.class[usize::from(byte)])]
    }

    /// Returns the state after bytes without marks, outside quotes: unchanged if all are blanks,
    /// else decided by the last byte.
    fn after_run(&self, state: FramingState, run: &[u8]) -> FramingState {
        let blank = |&byte: &u8| self.class[usize::from(byte)] == 1;
        match run.last() {
            Some(&last) if !run.iter().all(blank) => self.after(Plain, last),
            _ => state,
        }
    }

    /// Returns the number of bytes before the first mark.
    fn unmarked(&self, bytes: &[u8]) -> usize {
        // Without a branch for each byte, so that the compiler vectorises it.
        let marks = |byte: u8| self.marks.iter().fold(false, |any, &mark| any | (byte == mark));
        let strides = bytes.chunks_exact(STRIDE);
        let clean = strides.take_while(|stride| !stride.iter().fold(false, |any, &byte| any | marks(byte)));
        let clean = STRIDE * clean.count();
        let rest = &bytes[clean..];
        clean + rest.iter().position(|&byte| marks(byte)).unwrap_or(rest.len())
    }
}

const fn classes(first: &[u8], second: &[u8], ends: &[u8]) -> [u8; 256] {
    let mut class = [0; 256];
    let lists = [first, second, ends];
    let mut list = 0;
    while list < lists.len() {
        let mut at = 0;
        while at < lists[list].len() {
            class[lists[list][at] as usize] = list as u8 + 1;
            at += 1;
        }
        list += 1;
    }
    class
}

impl Framing {
    /// Begins before the first byte of a stream.
    pub fn new(format: Format) -> Self {
        let grammar = match format {
            Format::Csv(delimiter) => csv(delimiter),
            Format::Ndjson | Format::Fields | Format::Parquet | Format::Avro => NDJSON,
        };
        Framing { grammar, state: Between, records: 0, line: 1, began: 1, length: 0 }
    }

    /// Reads to the end of the first record; returns the number of bytes if it ends in `bytes`.
    pub fn first_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let records = self.records;
        let end = self.read(bytes, records + 1);
        (self.records > records).then_some(end)
    }

    /// Reads `bytes`, but stops at a record that is too long. Returns the number of bytes up to the
    /// last boundary between two records; blanks before a record belong to it.
    pub fn last_end(&mut self, bytes: &[u8]) -> usize {
        let (mut at, mut end) = (0, 0);
        for block in bytes.chunks(BLOCK) {
            let last = match self.read_plain(block) {
                Some(last) => last,
                None => self.read(block, u64::MAX),
            };
            if last > 0 {
                end = at + last;
            }
            if self.is_too_long() {
                break;
            }
            at += block.len();
        }
        end
    }

    /// Reads `block` as [`Self::read`] does, if its lines are plain and no record is too long.
    fn read_plain(&mut self, block: &[u8]) -> Option<usize> {
        if matches!(self.state, Quoted | QuoteInQuoted) || self.length + block.len() >= RECORD_LIMIT {
            return None;
        }
        let lines = self.grammar.plain_lines(block)?;
        let end = 1 + block.iter().rposition(|&byte| byte == b'\n')?;
        // The state knows the byte before the first one.
        self.records += lines.full + u64::from(block[0] == b'\n' && self.state != Between);
        self.line += lines.ended;
        self.began = self.line;
        self.state = self.grammar.after_run(Between, &block[end..]);
        self.length = block.len() - end;
        Some(end)
    }

    /// Returns whether the current record, or a line of blanks, is longer than any reader accepts.
    /// Line ends before a record do not count, so any number of blank lines may come.
    pub fn is_too_long(&self) -> bool {
        self.length > RECORD_LIMIT
    }

    /// Ends the stream, and with it the current record.
    pub fn end(&mut self) {
        self.records += u64::from(!self.is_between());
        (self.state, self.length) = (Between, 0);
    }

    /// Returns whether no record is being read.
    pub fn is_between(&self) -> bool {
        self.state == Between
    }

    /// Returns the line where the current record began.
    pub fn record_line(&self) -> u64 {
        self.began
    }

    /// Reads `bytes` until there are `enough` records or one is too long. Returns the number of
    /// bytes up to the last boundary between two.
    fn read(&mut self, bytes: &[u8], enough: u64) -> usize {
        let (mut state, mut end, before) = (self.state, 0, self.length);
        // Predicts that a line without quotes so far has none, and that one with quotes has more.
        let mut likely = !matches!(state, Quoted | QuoteInQuoted);
        let mut at = 0;
        while at < bytes.len() {
            if likely {
                let run = self.grammar.unmarked(&bytes[at..]);
                state = self.grammar.after_run(state, &bytes[at..at + run]);
                at += run;
            }
            let Some(&byte) = bytes.get(at) else { break };
            at += 1;
            let ends = state != Between;
            state = self.grammar.after(state, byte);
            self.line += u64::from(byte == b'\n');
            likely = state == Between;
            if state != Between {
                continue;
            }
            self.length = if end == 0 { before + at } else { at - end };
            if self.is_too_long() {
                return end;
            }
            (end, self.began, self.length) = (at, self.line, 0);
            self.records += u64::from(ends);
            if self.records >= enough {
                break;
            }
        }
        self.length = if end == 0 { before + at } else { at - end };
        self.state = state;
        end
    }
}

#[cfg(test)]
mod tests {
    use super::super::ByteStream;
    use super::super::csv::CsvRows;
    use super::super::ndjson::NdjsonRows;
    use super::super::row::{FileRows, Row, RowOutcome};
    use super::*;
    use proptest::prelude::*;

    /// Returns the number of records, and of bytes up to the last end of one.
    fn frame(format: Format, text: &str) -> (u64, usize) {
        let mut framing = Framing::new(format);
        let end = framing.last_end(text.as_bytes());
        (framing.records, end)
    }

    #[test]
    fn records_end_by_their_format() {
        let check = |format, text: &str, expected| assert_eq!(frame(format, text), expected, "{text:?}");
        check(Format::COMMAS, "a,b\n1,2\n3", (2, 8));
        check(Format::COMMAS, "a\r\n\r\n1\r", (2, 7));
        check(Format::COMMAS, "\"a\nb\",c\n\"1\n", (1, 8));
        check(Format::COMMAS, "\"a\"\"\nb\"\nc", (1, 8));
        check(Format::COMMAS, "a\"b\n\"c\"d\n", (2, 9));
        check(Format::Ndjson, "{}\n \n{\"a\":\n", (2, 11));
        check(Format::Ndjson, "  {}", (0, 0));
        check(Format::Ndjson, "", (0, 0));
    }

    #[test]
    fn the_first_record_and_lines_are_counted() {
        let mut framing = Framing::new(Format::COMMAS);
        assert_eq!(framing.first_end(b"\n\"a\n"), None);
        assert_eq!((framing.record_line(), framing.is_between()), (2, false));
        assert_eq!(framing.first_end(b"b\"\n1\n"), Some(3));
        assert_eq!((framing.record_line(), framing.records), (4, 1));
        assert_eq!(framing.last_end(b"5"), 0);
        framing.end();
        assert_eq!(framing.records, 2);
    }

    #[test]
    fn a_record_too_long_is_reported_after_the_records_before_it() {
        let mut framing = Framing::new(Format::COMMAS);
        let text = format!("a\n1\n\"{}", "x".repeat(2 * RECORD_LIMIT));
        assert_eq!(framing.last_end(text.as_bytes()), 4);
        assert_eq!((framing.is_too_long(), framing.record_line(), framing.records), (true, 3, 2));
        let mut framing = Framing::new(Format::COMMAS);
        assert_eq!(framing.first_end(&text.as_bytes()[4..]), None);
        assert!(framing.is_too_long());
    }

    /// Framing accepts a record exactly if a parser does.
    #[test]
    fn framing_and_parsers_have_one_limit() {
        let wanted = ["x".to_owned()];
        for excess in 0..3 {
            let length = RECORD_LIMIT - 2 + excess;
            let fits = length < RECORD_LIMIT;
            let expected = if fits { RowOutcome::Row } else { RowOutcome::TooLong };
            let csv =
                format!("\n\n{},{}\n", "\"\"".repeat(length / 4), "x".repeat(length - 1 - length / 4 * 2));
            let (head, blanks) = ("{\"x\":1}", " ".repeat(length - 7));
            for (format, text) in [
                (Format::COMMAS, csv),
                (Format::Ndjson, format!("\n\n{head}{blanks}\n")),
                (Format::Ndjson, format!("\n\n{blanks}{head}\n")),
            ] {
                let mut framing = Framing::new(format);
                framing.last_end(text.as_bytes());
                assert_eq!((framing.is_too_long(), framing.records), (!fits, u64::from(fits)), "{length}");
                let stream = |text: String| ByteStream::new(std::io::Cursor::new(text), 0);
                let mut rows: Box<dyn FileRows> = match format {
                    Format::Csv(delimiter) => {
                        let header =
                            CsvRows::open(stream("x,y\n".into()), "p".as_ref(), delimiter, &wanted).unwrap();
                        Box::new(header.resume(stream(text), 1))
                    }
                    _ => Box::new(NdjsonRows::open(stream(text), 1, &wanted)),
                };
                assert_eq!(rows.read(&mut Row::default()).unwrap(), expected, "{length}");
            }
        }
    }

    /// Blanks of a line count towards its length, as in its parser; line ends do not.
    #[test]
    fn a_line_of_blanks_may_be_too_long_and_no_number_of_blank_lines_is() {
        for format in [Format::COMMAS, Format::Ndjson] {
            let mut framing = Framing::new(format);
            for _ in 0..3 {
                assert_eq!(framing.last_end(&b"\n".repeat(RECORD_LIMIT)), RECORD_LIMIT);
                assert!(!framing.is_too_long() && framing.records == 0);
            }
        }
        for part in [1000, 1 << 16, 3 << 20] {
            let mut framing = Framing::new(Format::Ndjson);
            let (spaces, mut length) = (b" ".repeat(part), 0);
            while !framing.is_too_long() {
                assert!(length <= RECORD_LIMIT, "{length} blanks");
                assert_eq!(framing.last_end(&spaces), 0);
                length += part;
            }
            assert!(length > RECORD_LIMIT && framing.is_between());
        }
    }

    proptest! {
        /// Records are those of the parser, however the bytes are divided.
        #[test]
        fn csv_records_agree_with_the_parser(text in "([a,\"\r\n]|[a,]{20,70}){0,30}", cut in 0_usize..200) {
            let bytes = text.as_bytes();
            let (first, second) = bytes.split_at(cut.min(bytes.len()));
            let mut framing = Framing::new(Format::COMMAS);
            framing.last_end(first);
            framing.last_end(second);
            framing.end();
            let (mut parser, mut rest, mut records) = (csv_core::Reader::new(), bytes, 0);
            loop {
                let (result, read, _, _) = parser.read_record(rest, &mut [0; 64], &mut [0; 64]);
                rest = &rest[read..];
                match result {
                    csv_core::ReadRecordResult::Record => records += 1,
                    csv_core::ReadRecordResult::End => break,
                    _ => {}
                }
            }
            prop_assert_eq!(framing.records, records, "{:?}", text);
        }

        /// Counting blocks of plain lines gives the same result as passing every byte through the
        /// state machine.
        #[test]
        fn reading_by_blocks_equals_reading_byte_by_byte(text in "([a,\" \r\n]|[a,]{20,70}|[a, \n]{90}){1,30}", plain in 0_usize..3) {
            let bytes = [text.repeat(1 + BLOCK / text.len()), "a,b\n".repeat(plain * BLOCK / 4), text].concat();
            for format in [Format::COMMAS, Format::Ndjson] {
                let (mut plainly, mut framing) = (Framing::new(format), Framing::new(format));
                let ends = (plainly.read(bytes.as_bytes(), u64::MAX), framing.last_end(bytes.as_bytes()));
                prop_assert_eq!(ends.0, ends.1);
                let seen = |framing: &Framing| {
                    (framing.records, framing.line, framing.began, framing.length, framing.state as u8)
                };
                prop_assert_eq!(seen(&plainly), seen(&framing));
            }
        }

        /// Records of NDJSON are the lines that are not blank, however the bytes are divided.
        #[test]
        fn records_of_ndjson_are_lines(text in "([{ \t\r\n]|[{ ]{20,70}){0,30}", cut in 0_usize..200) {
            let (first, second) = text.as_bytes().split_at(cut.min(text.len()));
            let mut framing = Framing::new(Format::Ndjson);
            framing.last_end(first);
            framing.last_end(second);
            framing.end();
            let lines = text.split('\n').filter(|line| line.contains('{')).count();
            prop_assert_eq!(framing.records, lines as u64, "{:?}", text);
        }
    }
}
