//! Checks the pages of a column, so that a damaged page is an error before the decoder relies on
//! it.
//!
//! The decoder trusts the header of a page and panics if it is wrong. So this file counts levels
//! and checks that all their values are present. It unpacks the rarer encodings itself and passes
//! plain values to the decoder.

use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::schema::types::ColumnDescriptor;

use super::packed::{defined, deltas};

/// Maximum number of bytes of a page's unpacked values: texts with shared prefixes may be packed a
/// thousandfold.
const PLAIN_LIMIT: usize = 1 << 28;

/// Returns whether a column chunk lies within a file of `length` bytes.
pub(super) fn is_within(column: &ColumnChunkMetaData, length: u64) -> bool {
    let begin = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
    let end = begin.checked_add(column.compressed_size());
    let known =
        [begin, column.data_page_offset(), column.compressed_size()].iter().all(|&number| number >= 0);
    known && end.is_some_and(|end| end as u64 <= length)
}

/// Pages in order, up to the first damaged one.
pub(super) struct CheckedPages {
    pages: Box<dyn PageReader>,
    physical: Type,
    /// Bytes of a value; for texts, of the length; 0 for bits.
    width: usize,
    /// The level of a present value.
    most: u16,
    has_dictionary: bool,
}

impl CheckedPages {
    pub(super) fn new(pages: Box<dyn PageReader>, column: &ColumnDescriptor) -> Self {
        let physical = column.physical_type();
        let width = match physical {
            Type::BOOLEAN => 0,
            Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 4,
            Type::INT64 | Type::DOUBLE => 8,
            Type::INT96 => 12,
            Type::FIXED_LEN_BYTE_ARRAY => usize::try_from(column.type_length()).unwrap_or(0),
        };
        CheckedPages {
            pages,
            physical,
            width,
            most: column.max_def_level().unsigned_abs(),
            has_dictionary: false,
        }
    }

    fn is_fixed(&self) -> bool {
        self.physical == Type::FIXED_LEN_BYTE_ARRAY
    }

    /// Returns whether these bytes hold at least `count` plain values.
    fn hold(&self, values: &[u8], count: usize) -> bool {
        match self.physical {
            Type::BYTE_ARRAY => filled(values).is_some_and(|texts| texts >= count),
            Type::BOOLEAN => values.len() >= count.div_ceil(8),
            _ => count.checked_mul(self.width).is_some_and(|bytes| values.len() >= bytes),
        }
    }

    fn check_dictionary(&mut self, page: &Page) -> Result<()> {
        let plain = matches!(page.encoding(), Encoding::PLAIN | Encoding::PLAIN_DICTIONARY);
        let has_width = self.width > 0;
        if !plain || !has_width || !self.hold(page.buffer(), page.num_values() as usize) {
            return Err(damaged("a dictionary has fewer values than it says"));
        }
        self.has_dictionary = true;
        Ok(())
    }

    /// Returns where a data page's values begin, and their number.
    fn values(&self, page: &Page) -> Option<(usize, usize)> {
        let (buffer, count) = (page.buffer(), page.num_values() as usize);
        match page {
            Page::DataPage { def_level_encoding: Encoding::RLE, .. } if self.most > 0 => {
                let start = length(buffer)?.checked_add(4)?;
                Some((start, defined(buffer.get(4..start)?, self.most, count)?))
            }
            Page::DataPage { .. } if self.most > 0 => None,
            Page::DataPageV2 { num_nulls, def_levels_byte_len, rep_levels_byte_len, .. } => {
                let begin = *rep_levels_byte_len as usize;
                let start = begin.checked_add(*def_levels_byte_len as usize)?;
                let levels = buffer.get(begin..start)?;
                let there = if self.most > 0 { defined(levels, self.most, count)? } else { count };
                (count.checked_sub(*num_nulls as usize) == Some(there)).then_some((start, there))
            }
            _ => Some((0, count)),
        }
    }

    /// Returns the values of a page in plain form, if this file unpacks their encoding.
    fn unpacked(&self, encoding: Encoding, values: &[u8], count: usize) -> Option<Vec<u8>> {
        if count > PLAIN_LIMIT / 8 {
            return None;
        }
        match encoding {
            Encoding::DELTA_BINARY_PACKED => {
                let numbers = deltas(&mut { values }, count)?;
                Some(
                    numbers
                        .iter()
                        .flat_map(|number| number.to_le_bytes().into_iter().take(self.width))
                        .collect(),
                )
            }
            Encoding::BYTE_STREAM_SPLIT => {
                let stride = values.len().checked_div(self.width)?;
                let byte = |at: usize| values[at % self.width * stride + at / self.width];
                (stride * self.width == values.len()).then(|| (0..values.len()).map(byte).collect())
            }
            Encoding::DELTA_LENGTH_BYTE_ARRAY => self.texts(values, &vec![0; count]),
            Encoding::DELTA_BYTE_ARRAY => {
                let mut rest = values;
                let shared = deltas(&mut rest, count)?;
                self.texts(rest, &shared)
            }
            _ => None,
        }
    }

    /// Unpacks texts. Each begins with `shared` bytes of the one before it, and continues with
    /// bytes whose lengths come first.
    fn texts(&self, mut values: &[u8], shared: &[i64]) -> Option<Vec<u8>> {
        let lengths = deltas(&mut values, shared.len())?;
        let (mut plain, mut before) = (Vec::new(), 0..0);
        for (&shared, &length) in shared.iter().zip(&lengths) {
            let (shared, length) = (usize::try_from(shared).ok()?, usize::try_from(length).ok()?);
            let (own, rest) = values.split_at_checked(length)?;
            values = rest;
            let whole = u32::try_from(shared.checked_add(length)?).ok()?;
            if shared > before.len() || plain.len().checked_add(whole as usize)? > PLAIN_LIMIT {
                return None;
            }
            if !self.is_fixed() {
                plain.extend_from_slice(&whole.to_le_bytes());
            } else if whole as usize != self.width {
                return None;
            }
            let begin = plain.len();
            plain.extend_from_within(before.start..before.start + shared);
            plain.extend_from_slice(own);
            before = begin..plain.len();
        }
        Some(plain)
    }

    fn checked(&self, page: Page) -> Result<Page> {
        let (start, count) =
            self.values(&page).ok_or_else(|| damaged("levels are not what the page says"))?;
        let values = page.buffer().get(start..).ok_or_else(|| damaged("levels go beyond their page"))?;
        let (is_bits, is_text) = (self.physical == Type::BOOLEAN, self.physical == Type::BYTE_ARRAY);
        let is_whole = matches!(self.physical, Type::INT32 | Type::INT64);
        let encoding = page.encoding();
        let fits = match encoding {
            // Other decoders need initial bytes even for no values.
            _ if count == 0 => return Ok(plain(page, start, Vec::new())),
            Encoding::PLAIN => self.hold(values, count),
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => {
                self.has_dictionary && !values.is_empty()
            }
            Encoding::RLE => is_bits,
            Encoding::DELTA_BINARY_PACKED if !is_whole => false,
            Encoding::DELTA_LENGTH_BYTE_ARRAY if !is_text => false,
            Encoding::DELTA_BYTE_ARRAY if !is_text && !self.is_fixed() => false,
            Encoding::BYTE_STREAM_SPLIT if is_bits || is_text => false,
            _ => {
                let unpacked = self.unpacked(encoding, values, count);
                let unpacked = unpacked.filter(|unpacked| self.hold(unpacked, count));
                let unpacked = unpacked.ok_or_else(|| damaged("values are not packed as the page says"))?;
                return Ok(plain(page, start, unpacked));
            }
        };
        if fits { Ok(page) } else { Err(damaged("a page has fewer values than it says")) }
    }
}

/// Reads the length in the first four bytes.
fn length(bytes: &[u8]) -> Option<usize> {
    Some(u32::from_le_bytes(*bytes.first_chunk()?) as usize)
}

/// Returns the number of texts that exactly fill these bytes.
fn filled(mut bytes: &[u8]) -> Option<usize> {
    let mut texts = 0;
    while !bytes.is_empty() {
        bytes = bytes.get(4..)?.get(length(bytes)?..)?;
        texts += 1;
    }
    Some(texts)
}

fn damaged(what: &str) -> ParquetError {
    ParquetError::General(what.into())
}

/// Returns the page with plain values instead of those that begin at `start`.
fn plain(mut page: Page, start: usize, values: Vec<u8>) -> Page {
    if let Page::DataPage { buf, encoding, .. } | Page::DataPageV2 { buf, encoding, .. } = &mut page {
        let bytes = [&buf[..start], &values].concat();
        (*buf, *encoding) = (bytes.into(), Encoding::PLAIN);
    }
    page
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some(page) = self.pages.get_next_page()? else { return Ok(None) };
        if matches!(page, Page::DictionaryPage { .. }) {
            self.check_dictionary(&page)?;
            return Ok(Some(page));
        }
        self.checked(page).map(Some)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::filled;

    #[test]
    fn texts_fill_their_page() {
        let check = |bytes: &[u8], expected| assert_eq!(filled(bytes), expected, "{bytes:?}");
        check(&[], Some(0));
        check(&[1, 0, 0, 0, 7], Some(1));
        check(&[1, 0, 0, 0, 7, 0, 0, 0, 0], Some(2));
        check(&[2, 0, 0, 0, 7], None);
        check(&[1, 0, 0, 0, 7, 0], None);
        check(&[255, 255, 255, 255, 7], None);
    }
}
