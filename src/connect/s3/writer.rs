//! Tables as objects of a folder, each of a range of epochs.
//!
//! An object is written whole. The first write of a range requires that no object has its key. A
//! later write requires that the object is the one that was last written or read. So of two writers
//! one is refused, and a repeated request has no effect.

use std::collections::HashMap;
use std::io;

use super::client::{BucketClient, ObjectError};
use crate::connect::RequestError;
use crate::connect::files::tables::TableFolder;

/// The objects of a sink.
pub(super) struct ObjectFolder {
    client: BucketClient,
    folder: String,
    /// Tags of the objects that were read or written.
    tags: HashMap<String, String>,
}

impl ObjectFolder {
    pub(super) fn new(client: BucketClient, folder: String) -> Self {
        ObjectFolder { client, folder, tags: HashMap::new() }
    }

    fn key(&self, name: &str) -> String {
        if self.folder.is_empty() { name.into() } else { format!("{}/{name}", self.folder) }
    }

    fn failed(&mut self, error: ObjectError) -> RequestError {
        // The secret may have been renewed.
        self.client.close();
        match error {
            ObjectError::Other(error) => error,
            ObjectError::Missing => RequestError::NoStream,
            ObjectError::Changed => RequestError::Transient(io::Error::other(
                "another process writes to this destination: give this sink to only one process",
            )),
        }
    }
}

impl TableFolder for ObjectFolder {
    fn open(&mut self) -> Result<Vec<String>, RequestError> {
        self.tags.clear();
        let found = self.client.list(&self.folder)?;
        let names = found.into_iter().filter_map(|object| Some(object.key.rsplit('/').next()?.to_owned()));
        Ok(names.collect())
    }

    fn read(&mut self, name: &str) -> Result<Vec<u8>, RequestError> {
        let key = self.key(name);
        let (bytes, tag) = self.client.whole(&key).map_err(|error| self.failed(error))?;
        self.tags.insert(name.into(), tag);
        Ok(bytes.into())
    }

    fn replace(&mut self, name: &str, bytes: Vec<u8>) -> Result<(), RequestError> {
        let (key, tag) = (self.key(name), self.tags.get(name).cloned());
        let tag = match self.client.put(&key, tag.as_deref(), bytes.clone()) {
            Ok(tag) => tag,
            // An earlier request may have succeeded although its answer was lost.
            Err(ObjectError::Changed) => {
                let (found, tag) = self.client.whole(&key).map_err(|error| self.failed(error))?;
                if found != bytes {
                    return Err(self.failed(ObjectError::Changed));
                }
                tag
            }
            Err(error) => return Err(self.failed(error)),
        };
        self.tags.insert(name.into(), tag);
        Ok(())
    }
}
