//! Matrices in files: comma-separated numbers, a line for every row, no header. Workloads by name
//! or from such files.
//!
//! Workloads and strategies are public, so errors may show file contents.

use std::path::Path;

use csv::{ReaderBuilder, Trim};
use hushflow_mechanism::workload::Workload;
use nalgebra::DMatrix;

use super::StrategiesError;
use crate::whole::{LimitedFile, NUMBERS};

/// Prefix of a workload that is read from a file; the path follows.
const MATRIX: &str = "matrix:";

/// Reads a nonempty matrix of finite numbers.
///
/// # Errors
/// [`StrategiesError`], with the position of the problem.
pub fn read_matrix(path: &Path) -> Result<DMatrix<f64>, StrategiesError> {
    let read = |source| StrategiesError::UnreadableMatrix { path: path.into(), source };
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(Trim::All)
        .comment(Some(b'#'))
        .from_reader(LimitedFile::open(path, NUMBERS).map_err(|error| read(error.into()))?);
    let (mut numbers, mut rows, mut columns) = (Vec::new(), 0, 0);
    for record in reader.records() {
        let record = record.map_err(read)?;
        let line = record.position().map_or(0, csv::Position::line);
        if rows == 0 {
            columns = record.len();
        } else if record.len() != columns {
            return Err(StrategiesError::RaggedMatrix {
                path: path.into(),
                line,
                found: record.len(),
                expected: columns,
            });
        }
        rows += 1;
        for (field, column) in record.iter().zip(1..) {
            let number = field.parse().ok().filter(|number: &f64| number.is_finite());
            numbers.push(number.ok_or_else(|| StrategiesError::MatrixEntry {
                path: path.into(),
                line,
                column,
                found: field.chars().take(40).collect(),
            })?);
        }
    }
    if rows == 0 {
        return Err(StrategiesError::EmptyMatrix { path: path.into() });
    }
    Ok(DMatrix::from_row_slice(rows, columns, &numbers))
}

/// Reads a workload: a name, or `matrix:PATH` with the path of a matrix from `base`. Readers of a
/// log see the name of the file only.
///
/// # Errors
/// [`StrategiesError`].
pub fn read_workload(text: &str, base: &Path) -> Result<Workload, StrategiesError> {
    let Some(file) = text.strip_prefix(MATRIX) else { return Ok(text.parse()?) };
    let path = base.join(file);
    let matrix = read_matrix(&path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Workload::from_matrix(name, matrix).map_err(|source| StrategiesError::WorkloadFile { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<DMatrix<f64>, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.csv");
        std::fs::write(&path, text).unwrap();
        let shown = format!("{}:", directory.path().join("m.csv").display());
        read_matrix(&path).map_err(|error| error.to_string().replace(&shown, "m.csv:"))
    }

    #[test]
    fn numbers_are_read_row_by_row() {
        let expected = DMatrix::from_row_slice(2, 3, &[1.0, 0.0, -2.5, 3e2, 4.0, 5.0]);
        assert_eq!(read("# rows\n1, 0 ,-2.5\r\n3e2,4,5\n"), Ok(expected));
        assert_eq!(read("\u{feff}1"), Ok(DMatrix::from_element(1, 1, 1.0)));
    }

    #[test]
    fn workloads_are_read_by_name_and_from_files() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("w.csv"), "1,0\n0.5,2\n").unwrap();
        std::fs::write(directory.path().join("ahead.csv"), "1,1\n0.5,2\n").unwrap();
        let read = |text| read_workload(text, directory.path());
        let workload = read("matrix:w.csv").unwrap();
        assert_eq!((workload.coefficient(2, 1), workload.to_string().as_str()), (0.5, "matrix:w.csv"));
        assert_eq!(read("window:7").unwrap().to_string(), "window:7");
        let ahead = read("matrix:ahead.csv").unwrap_err().to_string();
        assert!(ahead.contains("ahead.csv: row 1, column 2 of the workload matrix is not 0"), "{ahead}");
        assert!(read("matrices").unwrap_err().to_string().starts_with("unknown workload"));
    }

    #[test]
    fn a_file_without_a_matrix_is_refused_with_its_position() {
        let check = |text: &str, expected: &str| assert_eq!(read(text).unwrap_err(), expected);
        check("1,2\n3,x\n", "m.csv:2: field 2 is `x`; expected a finite number such as 0.5");
        check("NaN", "m.csv:1: field 1 is `NaN`; expected a finite number such as 0.5");
        check("1,inf", "m.csv:1: field 2 is `inf`; expected a finite number such as 0.5");
        check("1,2\n3\n", "m.csv:2: 1 numbers in a line; expected 2 as in the first line");
        let empty = "m.csv: the file is empty; expected a line of comma-separated numbers for every row of the matrix";
        check("", empty);
        assert!(read_matrix("absent.csv".as_ref()).unwrap_err().to_string().starts_with("absent.csv: "));
        let endless = read_matrix("/dev/zero".as_ref()).unwrap_err().to_string();
        assert!(endless.contains("larger than 512 MiB"), "{endless}");
    }
}
