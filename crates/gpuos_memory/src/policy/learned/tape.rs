//! What a program did, and so what it will do if it does the same again.

use std::collections::{HashMap, VecDeque};

use crate::trace::Extent;

/// Touches that are kept.
pub const LENGTH: usize = 1 << 18;
/// Touches by which a place is found again.
const CONTEXT: usize = 4;
/// Touches that may be others than on the tape before the place is given up.
const PATIENCE: u32 = 32;

/// The last touches, and the place on them that is like now.
#[derive(Default)]
pub struct Tape {
    touches: VecDeque<Extent>,
    /// Number of the first of them, over all that there were.
    first: u64,
    /// Where each extent stands.
    places: HashMap<Extent, VecDeque<u64>>,
    /// Where a sequence of touches ended last.
    ends: HashMap<[Extent; CONTEXT], u64>,
    /// The place that is like the newest one.
    like: Option<u64>,
    strayed: u32,
}

impl Tape {
    /// Number of the newest touch.
    fn newest(&self) -> u64 {
        self.first + self.touches.len() as u64 - 1
    }

    fn at(&self, place: u64) -> Option<Extent> {
        let index = place.checked_sub(self.first)?;
        self.touches.get(usize::try_from(index).ok()?).copied()
    }

    pub fn touched(&mut self, extent: Extent) {
        self.touches.push_back(extent);
        let newest = self.newest();
        self.places.entry(extent).or_default().push_back(newest);
        self.follow(extent);
        if let Some(context) = self.context(newest) {
            self.ends.insert(context, newest);
        }
        if self.touches.len() > LENGTH {
            self.forget();
        }
    }

    fn follow(&mut self, extent: Extent) {
        if let Some(like) = self.like
            && self.at(like + 1) == Some(extent)
        {
            self.like = Some(like + 1);
            self.strayed = 0;
            return;
        }
        let found = self.context(self.newest());
        let found = found.and_then(|context| self.ends.get(&context)).copied();
        if found.is_some() {
            self.like = found;
            self.strayed = 0;
            return;
        }
        self.strayed += 1;
        if self.strayed > PATIENCE {
            self.like = None;
        }
    }

    fn context(&self, end: u64) -> Option<[Extent; CONTEXT]> {
        let mut context = [Extent(0); CONTEXT];
        for (back, extent) in (0..).zip(&mut context) {
            *extent = self.at(end.checked_sub(back)?)?;
        }
        Some(context)
    }

    fn forget(&mut self) {
        if let Some(end) = self.first.checked_add(CONTEXT as u64 - 1)
            && let Some(context) = self.context(end)
            && self.ends.get(&context) == Some(&end)
        {
            self.ends.remove(&context);
        }
        let Some(extent) = self.touches.pop_front() else {
            return;
        };
        if let Some(places) = self.places.get_mut(&extent) {
            places.pop_front();
            if places.is_empty() {
                self.places.remove(&extent);
            }
        }
        self.first += 1;
        self.like = self.like.filter(|like| *like >= self.first);
    }

    /// Whether a place is known that is like now.
    pub fn follows(&self) -> bool {
        self.like.is_some()
    }

    /// Number of the touch at which an extent is used next if all goes on as it did from the place that is like now.
    pub fn next(&self, extent: Extent) -> Option<u64> {
        let like = self.like?;
        let places = self.places.get(&extent)?;
        let after = places.partition_point(|place| *place <= like);
        let place = places.get(after)?;
        Some(self.newest() + (place - like))
    }
}
