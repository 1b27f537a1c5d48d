//! What a program reads and writes by calls, and what it has to save.

use gpuos_memory::objects::{ObjectId, Outcome, Span, Spot};

use crate::fabric::{Fabric, wrong};
use crate::failure::{Failure, Why};
use crate::listing;
use crate::shared::Place;

impl Fabric {
    /// Reads bytes from wherever they are, without moving them.
    ///
    /// # Errors
    /// There is no such part, or its bytes are lost.
    pub fn read(&self, object: ObjectId, offset: u64, to: &mut [u8]) -> Result<(), Failure> {
        let length = to.len() as u64;
        let range = self
            .lock()?
            .objects
            .extents(object, Span { offset, length })?;
        let mut rest = to;
        for index in range {
            let begin = index as u64 * self.shared.extent;
            let skip = offset.saturating_sub(begin);
            let count = (self.shared.extent - skip).min(rest.len() as u64) as usize;
            let (now, later) = rest.split_at_mut(count);
            self.read_extent(object, index as u64, skip as usize, now)?;
            rest = later;
        }
        Ok(())
    }

    /// Reads a part of an extent, and says where it was.
    pub(crate) fn read_extent(
        &self,
        object: ObjectId,
        index: u64,
        skip: usize,
        to: &mut [u8],
    ) -> Result<Spot, Failure> {
        let mut state = self.lock()?;
        let (extent, spot) = loop {
            match state.objects.reading(object, index)? {
                Some(found) => break found,
                None => state = self.pause(state)?,
            }
        };
        let place = &state.places[&object];
        let at = place.at + index * self.shared.extent;
        let home = place.home.clone();
        let marks = state.marks.get(&extent).cloned().unwrap_or_default();
        drop(state);
        let done = match spot {
            Spot::Hbm(_) => {
                for (_, mark) in &marks {
                    self.shared.near.wait(mark.mark);
                }
                let done = self.shared.near.download(at + skip as u64, to);
                done.map_err(|trouble| (Outcome::Lost, trouble))
            }
            Spot::Zero => {
                to.fill(0);
                Ok(())
            }
            spot => self.shared.peek(spot, home.as_deref(), index, skip, to),
        };
        let mut state = self.lock()?;
        match &done {
            Ok(()) | Err((Outcome::NoTarget, _)) => state.objects.read(extent),
            Err((_, trouble)) => {
                state.trouble = Some(trouble.clone());
                state.objects.lost(extent);
            }
        }
        self.told(state);
        done.map(|()| spot)
            .map_err(|(outcome, text)| match outcome {
                Outcome::NoTarget => {
                    Failure::new(Why::Full, format!("memory for an extent: {text}"))
                }
                _ => Failure::new(Why::Poisoned, text),
            })
    }

    /// Writes bytes, extent by extent.
    ///
    /// # Errors
    /// There is no such part, it may not be written, or there is no room.
    pub fn write(&self, object: ObjectId, offset: u64, from: &[u8]) -> Result<(), Failure> {
        let length = from.len() as u64;
        let state = self.lock()?;
        let range = state.objects.extents(object, Span { offset, length })?;
        let at = state.places[&object].at;
        drop(state);
        let (mut rest, mut offset) = (from, offset);
        for index in range {
            let end = (index as u64 + 1) * self.shared.extent;
            let (now, later) = rest.split_at((end - offset).min(rest.len() as u64) as usize);
            let length = now.len() as u64;
            let ticket = self.acquire(object, Span { offset, length }, true, None)?;
            self.wait(ticket, None)?;
            let done = self.shared.near.upload(at + offset, now);
            self.release(ticket)?;
            done.map_err(wrong)?;
            (rest, offset) = (later, offset + length);
        }
        Ok(())
    }

    /// Registers an object for checkpoints under a name; `None`: it is not registered any more.
    ///
    /// # Errors
    /// There is no such object, another one has the name, or it is none for a file of a save.
    pub fn register(&self, object: ObjectId, name: Option<&str>) -> Result<(), Failure> {
        if let Some(name) = name {
            listing::file_name(name).map_err(wrong)?;
        }
        let mut state = self.lock()?;
        state.objects.bytes(object)?;
        let mut others = state.places.iter().filter(|(id, _)| **id != object);
        if let Some(name) = name
            && others.any(|(_, place)| place.name.as_deref() == Some(name))
        {
            return Err(wrong("another object has this name: give one of its own"));
        }
        if let Some(place) = state.places.get_mut(&object) {
            place.name = name.map(str::to_string);
        }
        Ok(())
    }

    /// The objects that are registered, in the order in which they were made.
    ///
    /// # Errors
    /// The process was forked.
    pub fn registered(&self) -> Result<Vec<(ObjectId, String)>, Failure> {
        let state = self.lock()?;
        let named = |(id, place): (&ObjectId, &Place)| Some((*id, place.name.clone()?));
        let mut all: Vec<_> = state.places.iter().filter_map(named).collect();
        all.sort();
        Ok(all)
    }

    /// The time of now, for [`Fabric::written`].
    ///
    /// # Errors
    /// The process was forked.
    pub fn now(&self) -> Result<u64, Failure> {
        Ok(self.lock()?.objects.now())
    }

    /// The next part of an object, from `from` on, whose extents were written after a time of [`Fabric::now`], or may be being written.
    ///
    /// # Errors
    /// There is no such object.
    pub fn written(
        &self,
        object: ObjectId,
        since: u64,
        from: u64,
    ) -> Result<Option<Span>, Failure> {
        Ok(self.lock()?.objects.written(object, since, from)?)
    }
}
