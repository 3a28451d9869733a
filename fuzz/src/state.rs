//! State directories. One file of an intact directory is replaced by the input: byte for byte, or as frames whose checksums
//! are right. Reading, verifying and starting must end with an answer.

use super::framed;
use super::place::{in_memory, state_directory};
use hushflow::state::{EpochFrame, PublicHeader, PublicReader, Store, verify};

/// A file: its name, its role, what is in it.
type File = (&'static str, u8, &'static [u8]);

const VERSION_1: &[File] = &[
    ("private-000001.log", 1, include_bytes!("../../tests/fixtures/state-v1/private-000001.log")),
    ("public.log", 2, include_bytes!("../../tests/fixtures/state-v1/public.log")),
    ("checkpoint.a", 3, include_bytes!("../../tests/fixtures/state-v1/checkpoint.a")),
    ("checkpoint.b", 3, include_bytes!("../../tests/fixtures/state-v1/checkpoint.b")),
];

/// The private log begins after epoch 1.
const VERSION_2: &[File] = &[
    ("private-000002.log", 1, include_bytes!("../../tests/fixtures/state-v2/private-000002.log")),
    ("private-000003.log", 1, include_bytes!("../../tests/fixtures/state-v2/private-000003.log")),
    ("public.log", 2, include_bytes!("../../tests/fixtures/state-v2/public.log")),
    ("checkpoint.a", 3, include_bytes!("../../tests/fixtures/state-v2/checkpoint.a")),
    ("checkpoint.b", 3, include_bytes!("../../tests/fixtures/state-v2/checkpoint.b")),
];

/// Every file that an input may replace, with the version and the files of its directory.
fn replaceable() -> impl Iterator<Item = (u16, &'static [File], usize)> {
    let of = |(version, files): (u16, &'static [File])| {
        (0..files.len()).map(move |replaced| (version, files, replaced))
    };
    [(2, VERSION_2), (1, VERSION_1)].into_iter().flat_map(of)
}

/// The first byte of an input says which file is replaced (modulo 16), and then whether by frames (16), and of the other
/// version (32).
pub fn run(input: &[u8]) {
    let [which, rest @ ..] = input else { return };
    let Some((version, files, replaced)) = replaceable().nth(usize::from(which % 16)) else { return };
    let content = match which & 16 {
        0 => rest.to_vec(),
        _ => framed::file(files[replaced].1, if which & 32 == 0 { version } else { 3 - version }, rest),
    };
    let content = |place, intact| if place == replaced { &content[..] } else { intact };
    let files = files.iter().enumerate();
    let files = files.map(|(place, (name, _, intact))| (*name, content(place, *intact)));
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
        store.commit(&[next]).expect("a store that opens goes on");
        drop(store);
        verify(&path).expect("a directory that a store has opened can be read");
    });
}

/// Every file as it is.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let seed = |(which, (version, files, replaced)): (u8, (u16, &[File], usize))| {
        let (name, _, intact) = files[replaced];
        let raw = [&[which], intact].concat();
        let framed = [&[which | 16], &framed::input(intact)[..]].concat();
        [(format!("raw-{version}-{name}"), raw), (format!("framed-{version}-{name}"), framed)]
    };
    (0..).zip(replaceable()).flat_map(seed).collect()
}
