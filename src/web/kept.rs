//! Documents that all readers of a page share.
//!
//! The last [`MAX_DOCUMENTS`] used are kept. [`MAX_GROWING`] of them have a thread that has read
//! the log so far, so a new epoch costs as much as that epoch alone. The thread of a document ends
//! when nobody has asked for it for [`PATIENCE`], or when others need it. A document whose thread
//! has ended is computed from the first epoch again, but not before a pause of [`PAUSE_FACTOR`]
//! times the last computation. So a page takes a bounded share of the processor, for any number of
//! readers.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::follow::FollowError;

/// Number of documents that are kept.
const MAX_DOCUMENTS: usize = 16;

/// Number of documents that are extended as the log grows.
const MAX_GROWING: usize = 4;

/// Time after which a document that nobody asks for is extended no further.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause after a computation, as a multiple of its duration.
const PAUSE_FACTOR: u32 = 10;

/// A document that is extended as the log grows.
pub(super) trait GrowingText {
    /// Reads on in a log of `published` epochs, and returns the document.
    ///
    /// # Errors
    /// If the log can't be read. The document can't be extended afterwards.
    fn text(&mut self, published: u64) -> Result<String, FollowError>;

    /// Whether no later epoch changes the document.
    fn is_final(&self) -> bool;
}

/// Computed documents, the last used at the end.
#[derive(Default)]
pub(super) struct KeptDocuments(Mutex<Vec<(String, SharedDocument)>>);

/// A document. Its lock lets only one reader compute it at a time.
type SharedDocument = Arc<Mutex<KeptDocument>>;

#[derive(Default)]
struct KeptDocument {
    text: Option<Arc<str>>,
    published: u64,
    /// Time from which on the next document may be computed.
    due: Option<Instant>,
    thread: Option<Growing>,
}

/// The thread of a document: it takes numbers of published epochs, and returns the text.
struct Growing {
    published: Sender<u64>,
    texts: Receiver<Result<String, FollowError>>,
}

impl Growing {
    /// Starts a thread, unless the system has none left.
    fn start<T: GrowingText>(begin: impl FnOnce() -> T + Send + 'static) -> Option<Self> {
        let (published, requests) = channel();
        let (sender, texts) = channel();
        let extend = move || {
            let mut document = begin();
            while let Ok(published) = requests.recv_timeout(PATIENCE) {
                let text = document.text(published);
                let is_last = text.is_err() || document.is_final();
                if sender.send(text).is_err() || is_last {
                    return;
                }
            }
        };
        thread::Builder::new().name("readings".into()).spawn(extend).ok()?;
        Some(Growing { published, texts })
    }

    /// Returns the text, or why there is none; `None` if the thread has ended.
    fn text(&self, published: u64) -> Option<Result<String, FollowError>> {
        self.published.send(published).ok()?;
        self.texts.recv().ok()
    }
}

impl KeptDocuments {
    /// Returns the document of this name for a log of `published` epochs, or the last one if the
    /// next is not due. `begin` begins a document before the first epoch. Only one reader computes
    /// a document; others that want it wait. Returns `None` if it can't be computed.
    pub(super) fn get<T: GrowingText>(
        &self,
        name: &str,
        published: u64,
        begin: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Arc<str>> {
        let kept = self.slot(name);
        let mut kept = lock(&kept);
        if let Some(text) = &kept.text
            && (kept.published == published || kept.due.is_some_and(|due| Instant::now() < due))
        {
            return Some(Arc::clone(text));
        }
        let began = Instant::now();
        let mut computed = kept.thread.as_ref().and_then(|thread| thread.text(published));
        if computed.is_none() {
            self.make_room();
            kept.thread = Growing::start(begin);
            computed = kept.thread.as_ref().and_then(|thread| thread.text(published));
        }
        // The process that serves the log reports why it can't be read.
        let text: Arc<str> = computed?.ok()?.into();
        let rest = began.elapsed().saturating_mul(PAUSE_FACTOR).min(Duration::from_secs(3600));
        // The first computation reads the whole log, and the next ones the new epochs.
        kept.due = kept.text.as_ref().map(|_| Instant::now() + rest);
        (kept.text, kept.published) = (Some(Arc::clone(&text)), published);
        Some(text)
    }

    /// Ends the thread that was asked longest ago, if there are too many.
    fn make_room(&self) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A document that is locked is being computed.
        let mut growing: Vec<_> = all.iter().filter_map(|(_, kept)| kept.try_lock().ok()).collect();
        growing.retain(|kept| kept.thread.is_some());
        let surplus = (growing.len() + 1).saturating_sub(MAX_GROWING);
        growing.iter_mut().take(surplus).for_each(|kept| kept.thread = None);
    }

    fn slot(&self, name: &str) -> SharedDocument {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match all.iter().position(|(known, _)| known == name) {
            Some(at) => all.remove(at).1,
            None => Arc::default(),
        };
        if all.len() >= MAX_DOCUMENTS {
            all.remove(0);
        }
        all.push((name.into(), Arc::clone(&found)));
        found
    }
}

fn lock(kept: &SharedDocument) -> MutexGuard<'_, KeptDocument> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A document that takes some time for each epoch after the last one that it knows.
    struct Slow(u64, u64);

    impl GrowingText for Slow {
        fn text(&mut self, published: u64) -> Result<String, FollowError> {
            let new = published - self.0;
            thread::sleep(Duration::from_millis(self.1 * new));
            self.0 = published;
            Ok(format!("{new} new of {published}"))
        }

        fn is_final(&self) -> bool {
            self.0 >= 100
        }
    }

    #[test]
    fn a_document_is_extended_by_what_is_new() {
        let kept = KeptDocuments::default();
        let get = |name: &str, published: u64, each: u64| {
            kept.get(name, published, move || Slow(0, each)).expect("no error").to_string()
        };
        assert_eq!(get("a", 50, 5), "50 new of 50");
        assert_eq!(get("a", 50, 5), "50 new of 50", "nothing is new");
        assert_eq!(get("a", 52, 5), "2 new of 52", "only what is new is computed");
        assert_eq!(get("a", 53, 5), "2 new of 52", "it rests, but not for long");
        thread::sleep(Duration::from_millis(500));
        assert_eq!(get("a", 100, 5), "48 new of 100");
        // The threads of others replace the one of the document that was asked for longest ago.
        (0..MAX_GROWING).for_each(|number| drop(get(&number.to_string(), 10, 0)));
        assert_eq!(get("0", 12, 0), "2 new of 12");
        let first = get("b", 10, 0);
        assert_eq!((first.as_str(), get("1", 12, 0).as_str()), ("10 new of 10", "12 new of 12"));
        (0..MAX_DOCUMENTS).for_each(|number| drop(get(&format!("c{number}"), 1, 0)));
        assert_eq!(kept.0.lock().expect("no panic").len(), MAX_DOCUMENTS);
        assert_eq!(get("a", 52, 0), "52 new of 52", "the oldest has made room");
    }
}
