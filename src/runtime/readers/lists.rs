//! Lists of files of sources that other processes read. The state directory of the first process
//! keeps them: a process that finds files asks it to number them, and waits until their names are
//! on disk before it reads a row of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam::channel::{Receiver, Sender, unbounded};
use hushflow_operators::Fault;

use super::post::{MISMATCH, ReaderMessage, WeakPost};
use crate::connect::{FileList, SourceError};

/// In the first process: the lists of readers elsewhere, with their processes.
#[derive(Clone, Default)]
pub(super) struct ListsElsewhere(Arc<Mutex<HashMap<usize, OwnedList>>>);

/// The process of a reader, and its list.
type OwnedList = (usize, Arc<dyn FileList>);

impl ListsElsewhere {
    pub(super) fn insert(&self, reader: usize, process: usize, list: Arc<dyn FileList>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(reader, (process, list));
    }

    /// Numbers the files that a reader has found, and answers.
    pub(super) fn number(&self, reader: usize, names: &[Vec<u8>], post: &WeakPost, fault: &Fault) {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&reader).cloned();
        let Some((process, list)) = list else { return fault.raise(MISMATCH) };
        match (list.add(names), post.upgrade()) {
            (Ok(()), Some(post)) => post.send(process, ReaderMessage::Numbered(reader)),
            // The run has ended.
            (Ok(()), None) => {}
            (Err(error), _) => fault.raise(error),
        }
    }
}

/// In another process: the list of a reader.
pub(super) struct RemoteList {
    reader: usize,
    post: WeakPost,
    names: Mutex<Vec<Vec<u8>>>,
    numbered: Receiver<()>,
}

impl RemoteList {
    /// The list of a reader, and where to send when the files that it has found are numbered.
    pub(super) fn new(reader: usize, post: WeakPost, names: Vec<Vec<u8>>) -> (Self, Sender<()>) {
        let (sender, numbered) = unbounded();
        (RemoteList { reader, post, names: Mutex::new(names), numbered }, sender)
    }
}

impl FileList for RemoteList {
    fn names(&self) -> Vec<Vec<u8>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, names: &[Vec<u8>]) -> Result<(), SourceError> {
        let over = || SourceError::Elsewhere("the run has ended".into());
        let post = self.post.upgrade().ok_or_else(over)?;
        post.send(0, ReaderMessage::Found(self.reader, names.to_vec()));
        // While it is held, the dataflow of messages can't end.
        drop(post);
        self.numbered.recv().map_err(|_| over())?;
        self.names.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(names);
        Ok(())
    }
}
