//! State directories, lists of entities, ingest journals and ledgers. Their files are given byte for
//! byte, or as frames with valid checksums. Reading, verifying and continuing must end with an
//! answer.

use hushflow::ledger::{Book, set_budget};
use hushflow::mechanism::accounting::Delta;
use hushflow::state::{
    EpochFrame, IngestJournal, IngestReader, Position, PublicHeader, PublicReader, SavedEntities,
    SavedEntity, StateError, Store, verify, verify_ingest,
};
use std::cell::LazyCell;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use zeroize::Zeroizing;

/// The format version that the project reads.
const VERSION: u16 = 1;

const FILE_HEADER: usize = 16;
const FRAME_HEADER: usize = 24;

/// Returns the file for an input: a list of frames, each with two bytes of length, one of kind, one
/// of synced length in units of eight bytes, and a payload. All checksums are valid, so the target
/// gets past them.
fn file_of_frames(role: u8, version: u16, mut input: &[u8]) -> Vec<u8> {
    let mut file = b"hushflow".to_vec();
    file.extend(version.to_le_bytes());
    file.extend([role, 0]);
    file.extend(crc32c::crc32c(&file).to_le_bytes());
    while let [low, high, kind, synced, payload @ ..] = input {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(payload.len());
        let (payload, after) = payload.split_at(length);
        let mut header = (length as u32).to_le_bytes().to_vec();
        header.extend([*kind, 0, 0, 0]);
        header.extend((8 * u64::from(*synced)).to_le_bytes());
        header.extend(crc32c::crc32c(payload).to_le_bytes());
        header.extend(crc32c::crc32c(&header).to_le_bytes());
        file.extend(header);
        file.extend(payload);
        input = after;
    }
    file
}

/// Returns the input for a file, except that synced lengths are rounded down.
fn frames_of(file: &[u8]) -> Vec<u8> {
    let (mut rest, mut input) = (&file[FILE_HEADER..], Vec::new());
    while rest.len() >= FRAME_HEADER {
        let (header, after) = rest.split_at(FRAME_HEADER);
        let length = u16::from_le_bytes([header[0], header[1]]);
        let (payload, after) = after.split_at(length.into());
        let synced = u64::from_le_bytes(header[8..16].try_into().expect("eight bytes")) / 8;
        input.extend([header[0], header[1], header[4], synced.min(255) as u8]);
        input.extend(payload);
        rest = after;
    }
    input
}

thread_local! {
    static DIRECTORY: LazyCell<TempDir> = const { LazyCell::new(|| {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
        tempfile::tempdir_in(folder).expect("a temporary directory")
    }) };
}

/// Runs `work` in a directory of this thread, in memory if the system allows it.
pub(crate) fn in_memory<T>(work: impl FnOnce(&Path) -> T) -> T {
    DIRECTORY.with(|directory| work(directory.path()))
}

/// Makes a state directory with these files and no others.
fn state_directory<'a>(
    outer: &Path,
    name: &str,
    files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
) -> PathBuf {
    let path = outer.join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir(&path).expect("a directory");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).expect("mode 0700");
    for (name, bytes) in files {
        std::fs::write(path.join(name), bytes).expect("a file");
        std::fs::set_permissions(path.join(name), PermissionsExt::from_mode(0o600)).expect("mode 0600");
    }
    path
}

/// A file: its name, role and content.
type StateFile = (&'static str, u8, &'static [u8]);

/// The files of a whole log. Without the first, they are a log that begins after epoch 1.
const FILES: [StateFile; 6] = [
    ("private-000001.log", 1, include_bytes!("../../tests/fixtures/state/private-000001.log")),
    ("private-000002.log", 1, include_bytes!("../../tests/fixtures/state/private-000002.log")),
    ("private-000003.log", 1, include_bytes!("../../tests/fixtures/state/private-000003.log")),
    ("public.log", 2, include_bytes!("../../tests/fixtures/state/public.log")),
    ("checkpoint.a", 3, include_bytes!("../../tests/fixtures/state/checkpoint.a")),
    ("checkpoint.b", 3, include_bytes!("../../tests/fixtures/state/checkpoint.b")),
];

/// Every file that an input may replace, with its directory's name and files.
fn replaceable() -> impl Iterator<Item = (&'static str, &'static [StateFile], usize)> {
    let logs: [(_, &[StateFile]); 2] = [("compacted", &FILES[1..]), ("whole", &FILES)];
    logs.into_iter().flat_map(|(name, files)| (0..files.len()).map(move |replaced| (name, files, replaced)))
}

/// Reads, verifies and starts on a state directory in which the input replaces one file.
///
/// The first byte of the input selects the file (modulo 16), raw bytes or frames (16), and an
/// unknown version (32).
pub(crate) fn state(input: &[u8]) {
    let [which, rest @ ..] = input else { return };
    let Some((_, files, replaced)) = replaceable().nth(usize::from(which % 16)) else { return };
    let content = match which & 48 {
        16 => file_of_frames(files[replaced].1, VERSION, rest),
        48 => file_of_frames(files[replaced].1, VERSION + 1, rest),
        _ => rest.to_vec(),
    };
    let content = |index, intact| if index == replaced { &content[..] } else { intact };
    let files = files.iter().enumerate();
    let files = files.map(|(index, (name, _, intact))| (*name, content(index, *intact)));
    in_memory(|outer| {
        let path = state_directory(outer, "state", files);
        let _ = verify(&path);
        if let Ok(mut reader) = PublicReader::open(&path) {
            while let Ok(Some(_)) = reader.next_frame() {}
        }
        let header = PublicHeader { parameters: b"clip_norm = 1\n".to_vec(), private: false };
        let Ok((mut store, recovered)) = Store::open(&path, &header) else { return };
        let sound = recovered.replay.map_while(Result::ok).count();
        assert!(sound as u64 <= store.committed());
        let Some(epoch) = store.committed().checked_add(1) else { return };
        let next =
            EpochFrame { epoch, positions: vec![], sums: vec![1].into(), values: vec![2], admitted: None };
        store.commit(&[next]).expect("a store that opens continues");
        drop(store);
        verify(&path).expect("a directory that a store has opened can be read");
    });
}

/// Every file, unchanged.
pub(crate) fn state_seeds() -> Vec<(String, Vec<u8>)> {
    let seed = |(which, (log, files, replaced)): (u8, (&str, &[StateFile], usize))| {
        let (name, _, intact) = files[replaced];
        let raw = [&[which], intact].concat();
        let framed = [&[which | 16], &frames_of(intact)[..]].concat();
        [(format!("raw-{log}-{name}"), raw), (format!("framed-{log}-{name}"), framed)]
    };
    (0..).zip(replaceable()).flat_map(seed).collect()
}

const LISTS: [&str; 2] = ["entities-000001.list", "entities-000002.list"];
const LIST_ROLE: u8 = 9;

/// Three entities that take part in every epoch up to this one.
struct Regulars(u64);

impl SavedEntities for Regulars {
    fn number(&self) -> u64 {
        3
    }

    fn changed_since(&mut self, _since: u64) -> Zeroizing<Vec<SavedEntity>> {
        Zeroizing::new(self.all().collect())
    }

    fn all(&self) -> Box<dyn Iterator<Item = SavedEntity> + '_> {
        Box::new((0..3).map(|entity| SavedEntity {
            entity: 1 << (40 * entity),
            participations: self.0,
            last: self.0,
        }))
    }
}

/// Verifies and starts on a state directory in which the input replaces the list of entities of one
/// of its two checkpoints. The start succeeds: the other checkpoint and the log are intact.
///
/// The first byte of the input selects the list (1), and raw bytes or frames (2).
pub(crate) fn entities(input: &[u8]) {
    let [which, rest @ ..] = input else { return };
    let replaced = LISTS[usize::from(which & 1)];
    let content = if which & 2 == 0 { rest.to_vec() } else { file_of_frames(LIST_ROLE, VERSION, rest) };
    let mut files = lists_and_logs();
    files.iter_mut().filter(|(name, _)| name == replaced).for_each(|(_, bytes)| *bytes = content.clone());
    in_memory(|outer| {
        let files = files.iter().map(|(name, bytes)| (name.as_str(), &bytes[..]));
        let path = state_directory(outer, "entities", files);
        let _ = verify(&path);
        let header = PublicHeader { parameters: b"clip_norm = 1\n".to_vec(), private: false };
        let (mut store, recovered) = match Store::open(&path, &header) {
            Err(StateError::UnknownVersion { .. }) => return,
            opened => opened.expect("the other checkpoint is intact"),
        };
        let saved = recovered.entities.expect("a list");
        let found = saved.map(|block| block.expect("a list that was read before").len()).sum::<usize>();
        assert!(found <= rest.len() + 6, "more entities than bytes");
        let epoch = store.committed() + 1;
        commit_epoch(&mut store, epoch).expect("a store that opens continues");
        store.checkpoint_with(epoch, b"state", Some(&mut Regulars(epoch))).expect("a checkpoint");
        drop(store);
        Store::open(&path, &header).expect("a directory that a store has written");
    });
}

fn commit_epoch(store: &mut Store, epoch: u64) -> Result<(), StateError> {
    let admitted = Some(vec![0_u128; 3].into());
    let frame = EpochFrame { epoch, positions: vec![], sums: vec![1].into(), values: vec![2], admitted };
    store.commit(&[frame]).map(drop)
}

/// The files of a directory whose first list was appended to.
fn lists_and_logs() -> Vec<(String, Vec<u8>)> {
    thread_local! {
        static FILES: Vec<(String, Vec<u8>)> = write_lists().expect("lists can be written");
    }
    FILES.with(Clone::clone)
}

fn write_lists() -> Result<Vec<(String, Vec<u8>)>, StateError> {
    let header = PublicHeader { parameters: b"clip_norm = 1\n".to_vec(), private: false };
    in_memory(|outer| {
        let path = state_directory(outer, "lists", []);
        let (mut store, _) = Store::open(&path, &header)?;
        for epoch in 1..=3 {
            commit_epoch(&mut store, epoch)?;
            store.checkpoint_with(epoch, b"state", Some(&mut Regulars(epoch)))?;
        }
        let entries = std::fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry"));
        let read = |name: String| {
            let bytes = std::fs::read(path.join(&name)).expect("a file");
            (name, bytes)
        };
        Ok(entries.map(|entry| read(entry.file_name().to_string_lossy().into_owned())).collect())
    })
}

/// Both lists, unchanged.
pub(crate) fn entity_seeds() -> Vec<(String, Vec<u8>)> {
    let files = lists_and_logs();
    let list = |name: &str| files.iter().find(|(found, _)| found == name).expect("a list").1.clone();
    let seed = |(which, name): (u8, &str)| {
        let raw = [&[which], &list(name)[..]].concat();
        let framed = [&[which | 2], &frames_of(&list(name))[..]].concat();
        [(format!("raw-{which}"), raw), (format!("framed-{which}"), framed)]
    };
    (0..).zip(LISTS).flat_map(seed).collect()
}

const SEGMENTS: [&str; 2] = ["ingest-000000-000000.log", "ingest-000001-000000.log"];
const JOURNAL_ROLE: u8 = 7;

/// Reads and continues an ingest journal in which the input replaces one of two sessions.
///
/// The first byte of the input selects the session (1), raw bytes or frames (2), and the session
/// from which the journal is read (4); the second byte is the offset there.
pub(crate) fn journal(input: &[u8]) {
    let [which, offset, rest @ ..] = input else { return };
    let replaced = usize::from(which & 1);
    let content = if which & 2 == 0 { rest.to_vec() } else { file_of_frames(JOURNAL_ROLE, VERSION, rest) };
    let position = Position::new(u32::from(which & 4 != 0), u64::from(*offset));
    let mut segments = intact_journal();
    segments[replaced] = content;
    in_memory(|outer| {
        let files = SEGMENTS.into_iter().zip(segments.iter().map(Vec::as_slice));
        let path = state_directory(outer, "journal", files);
        let _ = verify_ingest(&path);
        let Ok(there) = append_and_read(&path, position, b"7\n") else { return };
        assert_eq!(
            append_and_read(&path, position, b"8\n").ok(),
            Some(there + 1),
            "a journal that opens continues"
        );
        verify_ingest(&path).expect("a directory that a store has opened can be read");
    });
}

/// Adds a record to the journal and reads all of it. Returns the number of records before.
fn append_and_read(path: &Path, position: Position, record: &[u8]) -> Result<u64, StateError> {
    let header = PublicHeader { parameters: b"clip_norm = 1\n".to_vec(), private: false };
    let (store, _) = Store::open(path, &header)?;
    let ingest = Arc::new(store.ingest(position, u64::MAX)?);
    let records_before = ingest.acknowledged(None).unwrap_or(0);
    ingest.begin(b"x\n", &mut |_| false)?;
    ingest.append([record, &[]], 1, &mut |_| false)?;
    ingest.end(None);
    for session in position.part..ingest.session() {
        let offset = if session == position.part { position.offset } else { 0 };
        let _ = read_session(&ingest, Position::new(session, offset));
    }
    let own = read_session(&ingest, Position::new(ingest.session(), 0));
    assert_eq!(own.ok().as_deref(), Some(record), "what this run wrote is there");
    Ok(records_before)
}

fn read_session(ingest: &Arc<IngestJournal>, position: Position) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut reader) = IngestReader::open(ingest, position)? {
        reader.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Two sessions of two groups each, as the project writes them.
fn intact_journal() -> [Vec<u8>; 2] {
    thread_local! {
        static INTACT: [Vec<u8>; 2] = write_journal().expect("a journal can be written");
    }
    INTACT.with(Clone::clone)
}

fn write_journal() -> Result<[Vec<u8>; 2], StateError> {
    let header = PublicHeader { parameters: b"clip_norm = 1\n".to_vec(), private: false };
    in_memory(|outer| {
        let path = state_directory(outer, "intact", []);
        for records in [["1\n2\n", "3\n"], ["4\n", "5\n6\n"]] {
            let (store, _) = Store::open(&path, &header)?;
            let ingest = store.ingest(Position::START, u64::MAX)?;
            ingest.begin(b"x\n", &mut |_| false)?;
            for records in records {
                let count = records.lines().count() as u64;
                ingest.append([records.as_bytes(), &[]], count, &mut |_| false)?;
            }
        }
        Ok(SEGMENTS.map(|name| std::fs::read(path.join(name)).expect("a segment")))
    })
}

/// Every segment, unchanged.
pub(crate) fn journal_seeds() -> Vec<(String, Vec<u8>)> {
    let seed = |(which, segment): (u8, Vec<u8>)| {
        let raw = [&[which, 2], &segment[..]].concat();
        let framed = [&[which | 2, 2], &frames_of(&segment)[..]].concat();
        [(format!("raw-{which}"), raw), (format!("framed-{which}"), framed)]
    };
    (0..).zip(intact_journal()).flat_map(seed).collect()
}

const LEDGER: &[u8] = include_bytes!("../../tests/fixtures/ledger/ledger");
const LEDGER_ROLE: u8 = 5;
const LEDGER_KIND: u8 = 8;

/// Reads a ledger, adds it up, writes it and reads it again.
///
/// The first byte of the input selects raw bytes of the file (0) or its text in a valid frame (1).
pub(crate) fn ledger(input: &[u8]) {
    let [which, rest @ ..] = input else { return };
    let file = if which & 1 == 0 {
        rest.to_vec()
    } else {
        file_of_frames(LEDGER_ROLE, VERSION, &ledger_frame(rest))
    };
    in_memory(|outer| {
        let path = state_directory(outer, "ledger", [("ledger", &file[..])]);
        let book = match Book::open(&path) {
            Ok(book) => book,
            Err(error) => return assert!(!error.to_string().is_empty()),
        };
        if let Ok(together) = book.ledger.composition(&book.ledger.adjacency()) {
            let epsilon = together.epsilon(Delta::new(1e-6).expect("a δ"));
            assert!(epsilon.is_none_or(|epsilon| epsilon.value() > 0.0));
        }
        if let Some(budget) = book.ledger.budget.clone() {
            set_budget(&path, |_| budget).expect("a ledger that was read can be written");
            assert_eq!(Book::open(&path).expect("a ledger that was written can be read").ledger, book.ledger);
        }
    });
}

/// A frame around the text of a ledger.
fn ledger_frame(text: &[u8]) -> Vec<u8> {
    let text = &text[..text.len().min(1 << 15)];
    let length = (text.len() as u16 + 8).to_le_bytes();
    [&length, &[LEDGER_KIND, 0][..], &(text.len() as u64).to_le_bytes(), text].concat()
}

/// A ledger, unchanged.
pub(crate) fn ledger_seeds() -> Vec<(String, Vec<u8>)> {
    let text = &frames_of(LEDGER)[12..];
    vec![("raw".into(), [&[0], LEDGER].concat()), ("text".into(), [&[1], text].concat())]
}
