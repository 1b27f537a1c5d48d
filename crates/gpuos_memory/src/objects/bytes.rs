//! Bytes that are read where they are, what was written since a time, and objects that are freed.

use super::slots::{Class, copy};
use super::state::{Objects, Ticket};
use super::{ObjectId, Origin, Refused, Span, Spot, Standing};
use crate::trace::Extent;

/// An object that is being freed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Going {
    /// Its extents in GPU memory: which of its extents, and the frame.
    pub mapped: Vec<(u64, u32)>,
    /// The numbers of all its extents, which are used again.
    pub extents: Vec<u32>,
}

impl Objects {
    /// Begins to read an extent where it is, without moving it: its number and where its bytes are; nobody else touches it until [`Objects::read`] is called.
    /// `None`: it is being moved, ask again later.
    ///
    /// # Errors
    /// There is no such extent, or its bytes are lost.
    pub fn reading(&mut self, id: ObjectId, index: u64) -> Result<Option<(u32, Spot)>, Refused> {
        let object = self.object(id)?;
        let at = object.extents.get(index as usize).copied();
        let at = at.ok_or(Refused::Outside(object.bytes))?;
        let slot = self.slots.get(at);
        if slot.poisoned {
            return Err(Refused::Poisoned(index));
        }
        if slot.busy {
            return Ok(None);
        }
        let spot = match slot.has(copy::HBM) {
            true => Spot::Hbm(slot.frames[0]),
            false => slot.source(),
        };
        self.slots.change(at, |slot| slot.busy = true);
        Ok(Some((at, spot)))
    }

    /// An extent was read.
    pub fn read(&mut self, extent: u32) {
        self.slots.change(extent, |slot| slot.busy = false);
    }

    /// The next part of an object, not before `from`, whose extents were written after a time of [`Objects::now`], or may be being written.
    ///
    /// # Errors
    /// There is no such object.
    pub fn written(&self, id: ObjectId, since: u64, from: u64) -> Result<Option<Span>, Refused> {
        let object = self.object(id)?;
        let is = |at: &u32| {
            let slot = self.slots.get(*at);
            slot.written > since || slot.writers > 0
        };
        let start = (from.div_ceil(self.extent) as usize).min(object.extents.len());
        let rest = &object.extents[start..];
        let Some(skip) = rest.iter().position(is) else {
            return Ok(None);
        };
        let count = rest[skip..].iter().take_while(|at| is(at)).count();
        let offset = (start + skip) as u64 * self.extent;
        let end = (offset + count as u64 * self.extent).min(object.bytes);
        Ok(Some(Span {
            offset,
            length: end - offset,
        }))
    }

    /// Begins to free an object; [`Objects::gone`] has to follow when what it names was unmapped.
    /// `None`: a part of it is being moved, ask again later.
    ///
    /// # Errors
    /// There is no such object, or it is held.
    pub fn free(&mut self, id: ObjectId) -> Result<Option<Going>, Refused> {
        let extents = self.object(id)?.extents.clone();
        let is_held = |ticket: &&Ticket| ticket.object == id.0 && ticket.standing == Standing::Held;
        let held = self.tickets.values().filter(is_held).count();
        if held > 0 {
            return Err(Refused::Held(held as u32));
        }
        if extents.iter().any(|at| self.slots.get(*at).busy) {
            return Ok(None);
        }
        let of_it = |(ticket, it): (&u64, &Ticket)| {
            (it.object == id.0 && it.standing == Standing::Waiting).then_some(*ticket)
        };
        let waiting: Vec<u64> = self.tickets.iter().filter_map(of_it).collect();
        for ticket in waiting {
            self.fail(ticket, Refused::Freed);
        }
        for at in extents.iter().copied() {
            self.ahead.give_up(at);
            if self.coming == Some(at) {
                self.coming = None;
                self.ahead.ended(0, at);
            }
            self.policy.freed(Extent(at));
            self.slots.change(at, |slot| {
                slot.busy = true;
                slot.class = Class::Out;
            });
        }
        if let Some(object) = self.objects.get_mut(&id.0) {
            object.goes = true;
        }
        let mapped = self.mapped(id);
        Ok(Some(Going { mapped, extents }))
    }

    /// An object's extents in GPU memory: which of its extents, and the frame.
    pub fn mapped(&self, id: ObjectId) -> Vec<(u64, u32)> {
        let extents = self.objects.get(&id.0).map_or(&[][..], |it| &it.extents);
        let frame = |at: &u32| {
            let slot = self.slots.get(*at);
            slot.has(copy::HBM).then_some((slot.index, slot.frames[0]))
        };
        extents.iter().filter_map(frame).collect()
    }

    /// Nothing of an object that is being freed is mapped any more.
    pub fn gone(&mut self, id: ObjectId) {
        let Some(object) = self.objects.remove(&id.0) else {
            return;
        };
        self.given += 1;
        if object.origin == Origin::Zero {
            self.promised -= object.extents.len() as u64;
        }
        for at in object.extents {
            self.slots.remove(at);
        }
    }

    /// The bytes of an extent could not be read where they are.
    pub fn lost(&mut self, extent: u32) {
        self.slots.change(extent, |slot| slot.busy = false);
        if !self.slots.get(extent).has(copy::HBM | copy::HOME) {
            self.poison(extent);
        }
    }
}
