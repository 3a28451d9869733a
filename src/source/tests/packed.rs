//! Tests that packed files are read and resumed like plain ones.

use super::*;
use crate::format::unpack::Packing;

#[test]
fn a_run_over_packed_files_resumes_at_any_mark() {
    let rows: Vec<_> = (0..200).map(|second| (second, second)).collect();
    let [a, b] = [timed(&rows[..90]), timed(&rows[90..])];
    let gzip = Packing::Gzip.pack(&[&a[..500], &a[500..]]);
    let zstd = Packing::Zstd.pack(&[&b[..77], &b[77..]]);
    let rest = "epochs = { records = 7, horizon = 25 }";
    check_resume(&[("a.csv.gz", &gzip), ("b.csv.zst", &zstd)], rest);
    let plain = pipeline(&[("a.csv", &a), ("b.csv", &b)], rest);
    let drained = |pipeline: &Pipeline| {
        let (records, mut marks) = drain(&mut SourceReader::open(pipeline).unwrap()).unwrap();
        // The fingerprint of a packed file is that of its packed bytes.
        marks.iter_mut().for_each(|mark| mark.resume.fingerprint = None);
        (records, marks)
    };
    let plain = drained(&plain.1);
    let (directory, pipeline) = pipeline(&[("a.csv.gz", &gzip), ("b.csv.zst", &zstd)], rest);
    assert!(drained(&pipeline) == plain, "positions count unpacked bytes");
    std::fs::write(directory.path().join("b.csv.zst"), &zstd[..zstd.len() - 1]).unwrap();
    let error = SourceReader::open(&pipeline).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("b.csv.zst") && error.contains("ends too early"), "before any row: {error}");
}
