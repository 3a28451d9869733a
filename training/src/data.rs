//! Labelled images from files: IDX, the format of MNIST and similar sets, and CSV with a column for
//! every pixel.
//!
//! IDX (<https://yann.lecun.org/exdb/mnist/>): two zero bytes, a byte for the element type (8:
//! unsigned bytes, the only one supported), a byte for the number of dimensions, the dimensions as
//! 32-bit big-endian integers, and then the elements, row by row, to the end of the file.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use thiserror::Error;

/// Folder of Debian's package `dataset-fashion-mnist`.
pub const FASHION_MNIST: &str = "/usr/share/datasets/fashion-mnist";

const UNSIGNED_BYTES: u8 = 8;

/// Maximum number of bytes read from a file. The largest file of images has 47 MB.
const MAX_BYTES: u64 = 1 << 29;

/// Error of reading images.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file cannot be read.
    #[error("{}: can't be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Fashion-MNIST is not installed.
    #[error(
        "Fashion-MNIST is not installed: {} does not exist; install it by `apt install dataset-fashion-mnist`, or train on \
         digits", path.display()
    )]
    NotInstalled {
        /// The missing file.
        path: PathBuf,
    },
    /// The file is not an IDX file of bytes with this number of dimensions.
    #[error(
        "{}: begins with {found:02x?}; expected an IDX file of unsigned bytes in {dimensions} dimensions, [00, 00, 08, {dimensions:02x}]",
        path.display()
    )]
    Magic {
        /// The file.
        path: PathBuf,
        /// Its first four bytes.
        found: [u8; 4],
        /// Expected number of dimensions.
        dimensions: u8,
    },
    /// The length of the file does not match its header.
    #[error(
        "{}: holds {found} elements where its header promises {expected}: the file is damaged, download it again",
        path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Number of bytes after the header.
        found: usize,
        /// Product of the dimensions.
        expected: u128,
    },
    /// The numbers of labels and images differ.
    #[error("{}: holds {labels} labels for {images} images: the files don't belong together", path.display())]
    Labels {
        /// The file of labels.
        path: PathBuf,
        /// Number of labels.
        labels: usize,
        /// Number of images.
        images: usize,
    },
    /// A CSV file cannot be parsed.
    #[error("{}: {source}", path.display())]
    Csv {
        /// The file.
        path: PathBuf,
        /// The position and the problem.
        source: csv::Error,
    },
    /// A row of a CSV file has the wrong number of pixels, or one out of range.
    #[error("{}: image {image} is invalid: expected {pixels} pixels from 0 to {white} and a label from 0 to 9", path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// Number of the image, from 1.
        image: usize,
        /// Number of pixels of an image.
        pixels: usize,
        /// Value of a white pixel.
        white: u8,
    },
}

/// Images of equal size, with grey levels from 0 to 1 and class numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelledImages {
    /// Number of pixels of an image.
    pub pixels: usize,
    /// Grey levels of all images, one after another.
    pub levels: Vec<f32>,
    /// The class of each image, from 0.
    pub labels: Vec<u8>,
}

impl LabelledImages {
    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns the grey levels and the class of one image.
    pub fn get(&self, image: usize) -> (&[f32], u8) {
        (&self.levels[image * self.pixels..][..self.pixels], self.labels[image])
    }

    /// Halves width and height by averaging four pixels; for square images of even width.
    pub fn halved(&self) -> Self {
        let width = self.pixels.isqrt();
        let half = width / 2;
        let level = |image: usize, pixel: usize| {
            let corner = image * self.pixels + 2 * (pixel / half) * width + 2 * (pixel % half);
            [0, 1, width, width + 1].map(|step| self.levels[corner + step]).iter().sum::<f32>() / 4.0
        };
        let pixels = (0..self.len()).flat_map(|image| (0..half * half).map(move |pixel| (image, pixel)));
        let levels = pixels.map(|(image, pixel)| level(image, pixel)).collect();
        Self { pixels: half * half, levels, labels: self.labels.clone() }
    }

    /// Returns the images whose numbers, from 0, are chosen.
    pub fn choose(&self, chosen: impl Fn(usize) -> bool) -> Self {
        let mut images = Self { pixels: self.pixels, ..Self::default() };
        for image in (0..self.len()).filter(|&image| chosen(image)) {
            let (levels, label) = self.get(image);
            images.levels.extend_from_slice(levels);
            images.labels.push(label);
        }
        images
    }
}

/// Images for training and for testing.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// Images for training.
    pub training: LabelledImages,
    /// Images that training does not see.
    pub test: LabelledImages,
}

/// Reads Fashion-MNIST (Xiao, Rasul & Vollgraf 2017) from a folder such as [`FASHION_MNIST`]:
/// 60,000 and 10,000 images of 28 × 28 pixels in ten classes.
///
/// # Errors
/// [`DataError::NotInstalled`] if the files are missing, and others if they are invalid.
pub fn fashion_mnist(folder: &Path) -> Result<Split, DataError> {
    let part = |name: &str| {
        let file = |kind| folder.join(format!("{name}-{kind}-ubyte.gz"));
        labelled_idx(&file("images-idx3"), &file("labels-idx1"))
    };
    Ok(Split { training: part("train")?, test: part("t10k")? })
}

/// Reads handwritten digits of 8 × 8 pixels from 0 to 16, from a CSV file with columns for the
/// pixels and then the label. Every fifth image is for testing.
///
/// # Errors
/// [`DataError`].
pub fn digits(path: &Path) -> Result<Split, DataError> {
    let images = labelled_csv(path, 64, 16)?;
    Ok(Split { training: images.choose(|image| image % 5 != 4), test: images.choose(|image| image % 5 == 4) })
}

fn labelled_csv(path: &Path, pixels: usize, white: u8) -> Result<LabelledImages, DataError> {
    let csv_error = |source| DataError::Csv { path: path.into(), source };
    let mut images = LabelledImages { pixels, ..LabelledImages::default() };
    let mut reader = csv::Reader::from_path(path).map_err(csv_error)?;
    for (row, number) in reader.deserialize().zip(1..) {
        let row: Vec<u8> = row.map_err(csv_error)?;
        match row.split_last() {
            Some((&label, levels))
                if levels.len() == pixels && label <= 9 && levels.iter().all(|&level| level <= white) =>
            {
                images.levels.extend(levels.iter().map(|&level| f32::from(level) / f32::from(white)));
                images.labels.push(label);
            }
            _ => return Err(DataError::Image { path: path.into(), image: number, pixels, white }),
        }
    }
    Ok(images)
}

fn labelled_idx(images: &Path, labels: &Path) -> Result<LabelledImages, DataError> {
    let (shape, levels) = read_idx::<3>(images)?;
    let (_, classes) = read_idx::<1>(labels)?;
    if classes.len() != shape[0] {
        return Err(DataError::Labels { path: labels.into(), labels: classes.len(), images: shape[0] });
    }
    let levels = levels.into_iter().map(|level| f32::from(level) / 255.0).collect();
    Ok(LabelledImages { pixels: shape[1] * shape[2], levels, labels: classes })
}

/// Returns the dimensions and elements of an IDX file of bytes, gzipped if its name ends in `gz`.
fn read_idx<const D: usize>(path: &Path) -> Result<([usize; D], Vec<u8>), DataError> {
    let io_error = |source| DataError::Io { path: path.into(), source };
    let file = File::open(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => DataError::NotInstalled { path: path.into() },
        _ => io_error(source),
    })?;
    let mut bytes = Vec::new();
    let zipped = path.extension().is_some_and(|extension| extension == "gz");
    let read = if zipped {
        GzDecoder::new(file).take(MAX_BYTES).read_to_end(&mut bytes)
    } else {
        file.take(MAX_BYTES).read_to_end(&mut bytes)
    };
    read.map_err(io_error)?;
    parse_idx(path, &bytes).map(|(shape, elements)| (shape, elements.to_vec()))
}

fn parse_idx<'a, const D: usize>(path: &Path, bytes: &'a [u8]) -> Result<([usize; D], &'a [u8]), DataError> {
    let mut found = [0; 4];
    found.iter_mut().zip(bytes).for_each(|(found, byte)| *found = *byte);
    if bytes.len() < 4 || found != [0, 0, UNSIGNED_BYTES, D as u8] {
        return Err(DataError::Magic { path: path.into(), found, dimensions: D as u8 });
    }
    let (sizes, elements) = bytes[4..].split_at((4 * D).min(bytes.len() - 4));
    let mut shape = [0; D];
    let sizes = sizes.as_chunks().0.iter().map(|size| u32::from_be_bytes(*size) as usize);
    let complete = shape.iter_mut().zip(sizes).map(|(dimension, size)| *dimension = size).count() == D;
    let expected = shape.iter().map(|&size| size as u128).product();
    if complete && elements.len() as u128 == expected {
        return Ok((shape, elements));
    }
    Err(DataError::Length { path: path.into(), found: elements.len(), expected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/digits_8x8.csv");

    #[test]
    fn digits_are_split_for_training_and_test() {
        let Split { training, test } = digits(Path::new(DIGITS)).unwrap();
        assert_eq!((training.len(), test.len(), training.pixels), (1438, 359, 64));
        let (levels, label) = training.get(0);
        assert_eq!((levels[2], levels[3], label), (5.0 / 16.0, 13.0 / 16.0, 0));
        assert_eq!(test.get(0).1, 4, "image 4 is the first one for testing");
        assert!((0..10).all(|class| training.labels.contains(&class)));
    }

    /// Two images of one row and two columns.
    const IMAGES: [u8; 20] = [0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 255, 51, 102];

    fn in_folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let file = File::create(folder.path().join(name)).unwrap();
            let mut gzip = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
            gzip.write_all(bytes).unwrap();
            gzip.finish().unwrap();
        }
        folder
    }

    #[test]
    fn idx_files_are_read() {
        let labels = [0, 0, 8, 1, 0, 0, 0, 2, 9, 7];
        let folder = in_folder(&[("a.gz", &IMAGES), ("b.gz", &labels)]);
        let images = labelled_idx(&folder.path().join("a.gz"), &folder.path().join("b.gz")).unwrap();
        let expected = LabelledImages { pixels: 2, levels: vec![0.0, 1.0, 0.2, 0.4], labels: vec![9, 7] };
        assert_eq!(images, expected);
    }

    #[test]
    fn halved_images_are_means_of_four_pixels() {
        let levels = [1.0, 2.0, 0.0, 0.0, 3.0, 2.0, 0.0, 4.0].repeat(2);
        let images = LabelledImages { pixels: 16, levels, labels: vec![3] };
        let expected = LabelledImages { pixels: 4, levels: vec![2.0, 1.0, 2.0, 1.0], labels: vec![3] };
        assert_eq!(images.halved(), expected);
    }

    #[test]
    fn damaged_idx_files_are_refused() {
        let check = |bytes: &[u8], message: &str| {
            let error = parse_idx::<3>(Path::new("x"), bytes).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        };
        check(&[], "begins with [00, 00, 00, 00]");
        check(&IMAGES[..3], "begins with [00, 00, 08, 00]");
        check(&[0, 0, 8, 1, 0, 0, 0, 0], "expected an IDX file of unsigned bytes in 3 dimensions");
        check(&[0, 0, 13, 3], "begins with [00, 00, 0d, 03]");
        check(&IMAGES[..10], "holds 0 elements");
        check(&IMAGES[..19], "holds 3 elements where its header promises 4");
        check(&[&IMAGES[..], &[0]].concat(), "holds 5 elements");
        let mut huge = IMAGES;
        huge[4..16].fill(255);
        check(&huge, "holds 4 elements where its header promises 79228162458924105385300197375");
    }

    #[test]
    fn missing_and_damaged_files_are_refused() {
        let folder = in_folder(&[
            ("train-images-idx3-ubyte.gz", &IMAGES),
            ("train-labels-idx1-ubyte.gz", &[0, 0, 8, 1, 0, 0, 0, 1, 9]),
        ]);
        let error = fashion_mnist(folder.path()).unwrap_err();
        assert!(matches!(error, DataError::Labels { labels: 1, images: 2, .. }), "{error}");
        let error = fashion_mnist(&folder.path().join("missing")).unwrap_err();
        assert!(error.to_string().contains("install it by `apt install dataset-fashion-mnist`"), "{error}");
        std::fs::write(folder.path().join("train-images-idx3-ubyte.gz"), b"not gzip").unwrap();
        assert!(matches!(fashion_mnist(folder.path()), Err(DataError::Io { .. })));
    }

    #[test]
    fn malformed_rows_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let check = |text: &str, message: &str| {
            std::fs::write(&path, text).unwrap();
            let error = labelled_csv(&path, 2, 16).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        };
        check("a,b,label\n1,2,3\n1,17,3\n", "image 2 is invalid: expected 2 pixels from 0 to 16");
        check("a,label\n1,3\n", "image 1 is invalid: expected 2 pixels");
        check("a,b,label\n1,2,10\n", "a label from 0 to 9");
        check("a,b,label\n1,x,3\n", "line: 2");
    }
}
