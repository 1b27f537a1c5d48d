//! What GPU memory, or what stands for it, has to be able to do.
//!
//! An object has a range of addresses for as long as it lives. An extent of it that is in this tier has a frame attached at its place in the range; frames
//! are numbers from zero, and their memory is made when they are attached for the first time.

use std::sync::Arc;

use crate::pages::Pages;

/// What went wrong, as a sentence.
pub(crate) type Trouble = String;

/// See the module. Callers name addresses of ranges that [`Near::reserve`] gave, and touch only what is attached.
pub(crate) trait Near: Send + Sync {
    /// A range of addresses, of whole extents.
    fn reserve(&self, bytes: u64) -> Result<u64, Trouble>;
    /// Gives a range back, of which nothing is attached.
    fn unreserve(&self, at: u64, bytes: u64);
    /// Puts a frame at an address. Its bytes are anybody's until they are filled.
    fn attach(&self, frame: u32, at: u64) -> Result<(), Trouble>;
    /// Takes it away. After an error its memory is given up, and the frame gets other memory when it is attached again.
    fn detach(&self, frame: u32, at: u64) -> Result<(), Trouble>;
    /// Gives the memory of a frame back that is attached nowhere.
    fn trim(&self, frame: u32);
    /// Has an attached frame hold zeros.
    fn zero(&self, at: u64) -> Result<(), Trouble>;
    /// Copies to attached frames, and waits for it.
    fn upload(&self, at: u64, from: &[u8]) -> Result<(), Trouble>;
    /// Copies from attached frames, and waits for it.
    fn download(&self, at: u64, to: &mut [u8]) -> Result<(), Trouble>;
    /// A mark behind all work that was given to a stream; 0 where there are no streams.
    fn mark(&self, stream: u64) -> Result<u64, Trouble>;
    /// Waits until the work before a mark has ended.
    fn wait(&self, mark: u64);
    /// Gives a mark up.
    fn forget(&self, mark: u64);
    /// Waits for all work.
    fn drain(&self);
    /// Makes copies from and to this memory fast.
    fn lock(&self, pages: &Pages);
    /// Undoes that.
    fn unlock(&self, pages: &Pages);
}

/// A mark that several extents share.
pub(crate) struct Mark {
    pub(crate) near: Arc<dyn Near>,
    pub(crate) mark: u64,
}

impl Drop for Mark {
    fn drop(&mut self) {
        if self.mark != 0 {
            self.near.forget(self.mark);
        }
    }
}
