//! Ledgers, as their text behind right checksums or byte for byte. What is read adds up, and is what it was when it is written
//! and read again.

use super::framed;
use super::place::{in_memory, state_directory};
use hushflow::ledger::{Book, set_budget};
use hushflow::mechanism::accounting::Delta;

const INTACT: &[u8] = include_bytes!("../../tests/fixtures/ledger/ledger");
const ROLE: u8 = 5;
const KIND: u8 = 8;

/// The first byte of an input says whether it is the file (0) or its text.
pub fn run(input: &[u8]) {
    let [which, rest @ ..] = input else { return };
    let file = if which & 1 == 0 { rest.to_vec() } else { framed::file(ROLE, framed::VERSION, &frame(rest)) };
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
            set_budget(&path, |_| budget).expect("what was read can be written");
            assert_eq!(Book::open(&path).expect("what was written can be read").ledger, book.ledger);
        }
    });
}

/// A frame around the text of a ledger.
fn frame(text: &[u8]) -> Vec<u8> {
    let text = &text[..text.len().min(1 << 15)];
    let length = (text.len() as u16 + 8).to_le_bytes();
    [&length, &[KIND, 0][..], &(text.len() as u64).to_le_bytes(), text].concat()
}

/// A ledger as it is.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let text = &framed::input(INTACT)[12..];
    vec![("raw".into(), [&[0], INTACT].concat()), ("text".into(), [&[1], text].concat())]
}
