//! Buffers that are used again: those of a range are large, and fresh memory costs a page fault for
//! every four kilobytes.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of buffers that wait for their next use.
const SPARE: usize = 16;

/// Buffers without content.
pub(crate) type Pool<T> = Arc<Mutex<Vec<Vec<T>>>>;

/// A buffer that returns to its pool when it is dropped.
pub(crate) struct PooledVec<T> {
    content: Vec<T>,
    pool: Pool<T>,
}

impl<T> PooledVec<T> {
    /// Takes an empty buffer from a pool.
    pub(super) fn of(pool: &Pool<T>) -> Self {
        let spare = pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
        PooledVec { content: spare.unwrap_or_default(), pool: Arc::clone(pool) }
    }
}

impl<T> Default for PooledVec<T> {
    fn default() -> Self {
        PooledVec { content: Vec::new(), pool: Pool::default() }
    }
}

impl<T> Deref for PooledVec<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.content
    }
}

impl<T> DerefMut for PooledVec<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.content
    }
}

impl<T> Drop for PooledVec<T> {
    fn drop(&mut self) {
        let mut content = std::mem::take(&mut self.content);
        content.clear();
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.len() < SPARE && content.capacity() > 0 {
            pool.push(content);
        }
    }
}
