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
    /// Touches in a row that came as the tape had them.
    run: u64,
}

impl Tape {
    /// Number of the newest touch.
    fn newest(&self) -> u64 {
        (self.first + self.touches.len() as u64).saturating_sub(1)
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
            self.run += 1;
            return;
        }
        self.run = 0;
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

    /// How many touches there were.
    pub fn count(&self) -> u64 {
        self.first + self.touches.len() as u64
    }

    /// How many touches ago the program was at the place that is like now.
    pub fn period(&self) -> Option<u64> {
        Some(self.newest() - self.like?).filter(|period| *period > 0)
    }

    /// How many touches in a row came as the tape had them.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// What comes next if all goes on as it did from the place that is like now, the next touch first.
    pub fn ahead(&self) -> impl Iterator<Item = Extent> + '_ {
        let from = self.like.map_or(self.newest() + 1, |like| like + 1);
        (from..).map_while(|place| self.at(place))
    }

    /// How many touches from now on an extent is used, after so many more have passed.
    pub fn next_after(&self, extent: Extent, passed: u64) -> Option<u64> {
        let like = self.like?;
        let places = self.places.get(&extent)?;
        let after = places.partition_point(|place| *place <= like + passed);
        Some(places.get(after)? - like)
    }

    /// How often an extent is used in so many touches, after so many have passed.
    pub fn uses(&self, extent: Extent, passed: u64, within: u64) -> usize {
        let (Some(like), Some(places)) = (self.like, self.places.get(&extent)) else {
            return 0;
        };
        let upto = |end: u64| places.partition_point(|place| *place <= end);
        upto(like + passed + within) - upto(like + passed)
    }

    /// Number of the touch at which an extent is used next if all goes on as it did from the place that is like now.
    pub fn next(&self, extent: Extent) -> Option<u64> {
        Some(self.newest() + self.next_after(extent, 0)?)
    }
}
