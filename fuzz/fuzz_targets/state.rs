//! State directories. One file of an intact directory is replaced by the input: byte for byte, or as frames whose checksums
//! are right, so that what stands behind the checksums is reached. Reading, verifying and starting must end with an answer.
#![no_main]

use hushflow::state::{EpochFrame, PublicHeader, PublicReader, Store, verify};
use libfuzzer_sys::fuzz_target;
use std::cell::LazyCell;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

#[path = "place.rs"]
mod place;

const FILES: [(&str, u8, &[u8]); 4] = [
    ("private-000001.log", 1, include_bytes!("../../tests/fixtures/state-v1/private-000001.log")),
    ("public.log", 2, include_bytes!("../../tests/fixtures/state-v1/public.log")),
    ("checkpoint.a", 3, include_bytes!("../../tests/fixtures/state-v1/checkpoint.a")),
    ("checkpoint.b", 3, include_bytes!("../../tests/fixtures/state-v1/checkpoint.b")),
];

thread_local! {
    static DIRECTORY: LazyCell<TempDir> = const { LazyCell::new(place::directory) };
}

fuzz_target!(|input: &[u8]| {
    let [which, rest @ ..] = input else { return };
    let replaced = usize::from(which % 4);
    let content = if which & 4 == 0 {
        rest.to_vec()
    } else {
        framed(FILES[replaced].1, 1 + u16::from(which >> 7), rest)
    };
    DIRECTORY.with(|directory| {
        let path = directory.path().join("state");
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a directory");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).expect("mode 0700");
        for (place, (name, _, intact)) in FILES.iter().enumerate() {
            let bytes = if place == replaced { &content } else { *intact };
            std::fs::write(path.join(name), bytes).expect("a file");
            std::fs::set_permissions(path.join(name), PermissionsExt::from_mode(0o600)).expect("mode 0600");
        }
        let _ = verify(&path);
        if let Ok(mut reader) = PublicReader::open(&path) {
            while let Ok(Some(_)) = reader.next_frame() {}
        }
        let header = PublicHeader { parameters: b"clip_norm = 1\n".to_vec(), private: false };
        let Ok((mut store, recovered)) = Store::open(&path, &header) else { return };
        let sound = recovered.replay.map_while(Result::ok).count();
        let next = EpochFrame {
            epoch: store.committed() + 1,
            positions: vec![],
            sums: vec![1].into(),
            values: vec![2],
            admitted: None,
        };
        assert!(sound as u64 <= store.committed());
        store.commit(&[next]).expect("a store that opens goes on");
        drop(store);
        verify(&path).expect("a directory that a store has opened can be read");
    });
});

/// A file of frames: each two bytes of length, one of kind, one of synced length in units of eight bytes, a payload.
fn framed(role: u8, version: u16, mut rest: &[u8]) -> Vec<u8> {
    let mut file = b"hushflow".to_vec();
    file.extend(version.to_le_bytes());
    file.extend([role, 0]);
    file.extend(crc32c::crc32c(&file).to_le_bytes());
    while let [low, high, kind, synced, payload @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(payload.len());
        let (payload, behind) = payload.split_at(length);
        let mut header = (length as u32).to_le_bytes().to_vec();
        header.extend([*kind, 0, 0, 0]);
        header.extend((8 * u64::from(*synced)).to_le_bytes());
        header.extend(crc32c::crc32c(payload).to_le_bytes());
        header.extend(crc32c::crc32c(&header).to_le_bytes());
        file.extend(header);
        file.extend(payload);
        rest = behind;
    }
    file
}
