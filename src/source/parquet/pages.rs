//! Pages of a column in an order that can be decoded: a damaged file is an error before the decoder relies on it.

use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};

/// Pages as they come, up to one that refers to a dictionary that has not come.
pub(super) struct Checked {
    pages: Box<dyn PageReader>,
    has_dictionary: bool,
}

impl Checked {
    pub(super) fn new(pages: Box<dyn PageReader>) -> Self {
        Checked { pages, has_dictionary: false }
    }
}

impl PageReader for Checked {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        let refers =
            |page: &Page| matches!(page.encoding(), Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY);
        match &page {
            Some(Page::DictionaryPage { .. }) => self.has_dictionary = true,
            Some(page) if refers(page) && !self.has_dictionary => {
                return Err(ParquetError::General("a page refers to a dictionary that is not there".into()));
            }
            _ => {}
        }
        Ok(page)
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

impl Iterator for Checked {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}
