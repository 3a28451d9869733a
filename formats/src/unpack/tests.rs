//! Tests packed files and pipes: members, frames, zeros, cuts and damage.

use super::*;

fn unpacked(name: &str, bytes: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let read = |packing: Packing| {
        let mut content = Vec::new();
        packing.open(&path)?.read_to_end(&mut content).map_err(|source| io_error(&path, source))?;
        packing.open(&path)?.verify()?;
        Ok(content)
    };
    let content: Result<_, FormatError> = Packing::of(&path).and_then(|found| found.map(read).transpose());
    content.map_err(|error| error.to_string().replace(path.to_str().unwrap(), name))
}

#[test]
fn members_and_frames_are_read_one_after_the_other() {
    for packing in Packing::ALL {
        let long: Vec<u8> = (0..300_000u32).flat_map(|number| (number / 7).to_le_bytes()).collect();
        let bytes = packing.pack(&[b"x\n1\n", b"", &long, b"2\n"]);
        let expected = [b"x\n1\n", &long[..], b"2\n"].concat();
        let name = format!("a.csv.{}", packing.suffix());
        assert_eq!(unpacked(&name, &bytes), Ok(Some(expected.clone())));
        assert_eq!(unpacked("a.csv", &bytes), Ok(Some(expected)), "the first bytes decide");
    }
    assert_eq!(unpacked("a.csv", b"x\n1\n"), Ok(None));
    // A frame that carries no data, then one that does.
    let skipped = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3], &Packing::Zstd.pack(&[b"x\n"])[..]];
    assert_eq!(unpacked("a.csv.zst", &skipped.concat()), Ok(Some(b"x\n".to_vec())));
    let frames = [&Packing::Zstd.pack(&[b"y"])[..], &skipped.concat()].concat();
    assert_eq!(unpacked("a.csv", &frames), Ok(Some(b"yx\n".to_vec())));
}

#[test]
fn zeros_may_fill_up_a_gzip_file() {
    let bytes = [&Packing::Gzip.pack(&[b"x\n"])[..], &[0; 100_000]].concat();
    assert_eq!(unpacked("a.csv.gz", &bytes), Ok(Some(b"x\n".to_vec())));
    let error = unpacked("a.csv.gz", &[&bytes[..], b"1"].concat()).unwrap_err();
    assert!(error.contains("bytes follow after the end of the gzip stream"), "{error}");
}

#[test]
fn pipes_are_unpacked_by_their_first_bytes() {
    let read = |bytes: &[u8]| {
        let (mut piped, mut content) =
            (PipedBytes::new(io::Cursor::new(bytes.to_vec()), "-".as_ref()), Vec::new());
        piped.read_to_end(&mut content).map(|_| content)
    };
    for plain in [&b""[..], b"x", b"P", b"Px\n1\n", b"\x1f", b"\x28\xb5\x2f"] {
        assert_eq!(read(plain).unwrap(), plain);
    }
    for packing in Packing::ALL {
        let bytes = packing.pack(&[b"x\n1\n", b"2\n"]);
        assert_eq!(read(&bytes).unwrap(), b"x\n1\n2\n");
        let error = read(&bytes[..bytes.len() - 1]).unwrap_err().to_string();
        assert!(error.contains("ends too early"), "{error}");
    }
}

#[test]
fn bytes_after_the_last_member_are_reported_with_their_position() {
    for packing in Packing::ALL {
        let bytes = packing.pack(&[b"x\n1\n", b"2\n"]);
        for rest in [&b"\n"[..], b"more rows, not packed\n"] {
            let error = unpacked("a.csv", &[&bytes[..], rest].concat()).unwrap_err();
            let (at, name) = (format!("at byte {},", bytes.len()), packing.name());
            assert!(error.contains(&at) && error.contains("after 6 unpacked bytes"), "{error}");
            let problem = format!("bytes follow after the end of the {name} stream");
            assert!(error.contains(&problem), "{error}");
        }
        let error = unpacked("a.csv", &bytes[..bytes.len() - 1]).unwrap_err();
        assert!(error.contains("ends too early"), "{error}");
    }
}

#[test]
fn every_cut_and_every_flipped_bit_is_reported_or_harmless() {
    for packing in Packing::ALL {
        let bytes = packing.pack(&[b"x\n1\n2\n3\n", b"4\n"]);
        let content = unpacked("a.csv", &bytes).unwrap();
        let first = packing.pack(&[b"x\n1\n2\n3\n"]).len();
        for length in (4..bytes.len()).filter(|&length| length != first) {
            let error = unpacked("a.csv", &bytes[..length]).unwrap_err();
            assert!(error.starts_with("a.csv: the ") && error.contains("at byte"), "{length}: {error}");
        }
        for bit in 32..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // A header may hold bits without meaning, such as a time or an operating system.
            if let Ok(found) = unpacked("a.csv", &flipped) {
                assert!(found == content, "{packing:?} bit {bit}");
            }
        }
    }
}

#[test]
fn a_suffix_of_a_packing_must_match_the_content() {
    let error = unpacked("a.csv.gz", b"x\n1\n").unwrap_err();
    assert!(error.contains("a.csv.gz: the name ends in .gz, but the file is not packed"), "{error}");
    let error = unpacked("a.csv.zst", &Packing::Gzip.pack(&[b"x"])).unwrap_err();
    assert!(error.contains("but the file is gzip"), "{error}");
    assert!(unpacked("a.csv.gz", b"").unwrap_err().contains("but the file is empty"));
}

#[test]
fn a_window_beyond_the_limit_is_refused_before_memory_is_taken() {
    // A frame header with a window of 2^40 bytes.
    let error = unpacked("a.csv", &[0x28, 0xb5, 0x2f, 0xfd, 0, 30 << 3, 1, 0, 0]).unwrap_err();
    assert!(error.contains("pack it again without --long"), "{error}");
}

/// A frame that names a dictionary, and damage of every kind, have readable errors.
#[test]
fn what_the_decoder_says_is_explained() {
    let with_dictionary = [0x28, 0xb5, 0x2f, 0xfd, 0x01, 0x00, 0x07, 0x09, 0, 0, b'x'];
    let error = unpacked("a.csv.zst", &with_dictionary).unwrap_err();
    assert!(error.ends_with("it was packed with a dictionary: pack it again without one"), "{error}");
    let text: String = (0..5000u32).map(|number| (number * 7919 % 1000).to_string() + "\n").collect();
    let whole = Packing::Zstd.pack(&[text.as_bytes()]);
    for at in 4..whole.len().min(200) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        if let Err(error) = unpacked("a.csv.zst", &damaged) {
            let is_code = error.contains(['{', '(', '_']) || error.contains("Failed");
            assert!(!is_code, "{error}");
        }
    }
}

#[test]
fn names_lose_the_suffix_of_their_packing() {
    for (name, expected) in [("a.csv.gz", "a.csv"), ("a.ndjson.zst", "a.ndjson"), ("a.csv", "a.csv")] {
        assert_eq!(unpacked_name(name.as_ref()), Path::new(expected));
    }
}
