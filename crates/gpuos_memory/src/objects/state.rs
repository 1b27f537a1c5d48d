//! What programs ask for.

use std::collections::{HashMap, VecDeque};

use super::slots::{Class, Slot, Slots, copy};
use super::{
    Advice, Config, Counts, Event, ObjectId, Origin, Refused, Span, Standing, TicketId, Tier,
};
use crate::link::{Link, Why, Wish};
use crate::policy::{self, Answer, Policy};
use crate::trace::Extent;

/// Extents that a mapped file may have: all of them are noted from the beginning, also those of a file that is mostly holes.
const MOST_OF_FILE: u64 = 1 << 22;

/// An object.
pub(super) struct Object {
    pub(super) bytes: u64,
    pub(super) extents: Vec<u32>,
    pub(super) origin: Origin,
    /// It is being freed.
    pub(super) goes: bool,
}

/// A ticket.
pub(super) struct Ticket {
    pub(super) object: u64,
    /// Its extents: the first, and the one after the last.
    pub(super) first: usize,
    pub(super) end: usize,
    pub(super) writes: bool,
    pub(super) standing: Standing,
    /// How far it is while it is being served.
    pub(super) at: usize,
    /// That it waits for others was told.
    pub(super) told: bool,
    /// It found nothing that could leave when so much had been given back.
    pub(super) stuck: Option<u64>,
}

/// The objects of a process on one GPU.
pub struct Objects {
    pub(super) extent: u64,
    pub(super) slots: Slots,
    pub(super) objects: HashMap<u64, Object>,
    pub(super) tickets: HashMap<u64, Ticket>,
    /// Tickets that wait, in the order in which they came.
    pub(super) waiting: VecDeque<u64>,
    /// The one that is being served, and holds its extents.
    pub(super) served: Option<u64>,
    pub(super) ahead: Link<u32>,
    /// The extent that is being brought in ahead.
    pub(super) coming: Option<u32>,
    pub(super) policy: Box<dyn Policy>,
    /// Ids, orders and times are all of this counter.
    pub(super) clock: u64,
    /// Extents of all objects that are not mapped files.
    pub(super) promised: u64,
    /// How often something was given back that tickets may be stuck for.
    pub(super) given: u64,
    pub(super) events: Vec<Event>,
    pub(super) counts: Counts,
}

impl Objects {
    /// None yet. `None`: there is no policy of that name.
    pub fn new(config: &Config) -> Option<Objects> {
        let capacity = config.limits[0].saturating_sub(1).max(1) as usize;
        Some(Objects {
            extent: config.extent.max(1),
            slots: Slots::new(config.limits),
            objects: HashMap::new(),
            tickets: HashMap::new(),
            waiting: VecDeque::new(),
            served: None,
            ahead: Link::new(config.ahead),
            coming: None,
            policy: policy::named(&config.policy, capacity)?,
            clock: 1,
            promised: 0,
            given: 0,
            events: Vec::new(),
            counts: Counts::default(),
        })
    }

    /// A number that is larger than all before.
    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The time of now, to ask later what was written since.
    pub fn now(&mut self) -> u64 {
        self.tick()
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Extents that a tier has, and that it may have.
    pub fn used(&self, tier: Tier) -> (u32, u32) {
        let pool = &self.slots.pools[tier as usize];
        (pool.used, pool.limit)
    }

    /// Extents of GPU memory that no ticket holds and nobody has pinned.
    pub fn unheld(&self) -> u64 {
        u64::from(self.slots.pools[0].limit).saturating_sub(self.slots.staying)
    }

    /// Objects, and tickets that were not released.
    pub fn count(&self) -> (usize, usize) {
        (self.objects.len(), self.tickets.len())
    }

    /// What programs should be told, since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Frames of a tier whose memory can be given back.
    pub fn surplus(&self, tier: Tier) -> &[u32] {
        self.slots.pools[tier as usize].surplus()
    }

    /// How many extents there may be that need room.
    fn room(&self) -> u64 {
        let [hbm, lower @ ..] = self
            .slots
            .pools
            .each_ref()
            .map(|pool| u64::from(pool.limit));
        match lower.iter().sum::<u64>() {
            0 => hbm,
            lower => hbm + lower - 1,
        }
    }

    /// How many extents an object of so many bytes has, if there is room for it.
    ///
    /// # Errors
    /// No bytes, or more than all tiers together have left.
    pub fn fits(&self, bytes: u64, origin: Origin) -> Result<u64, Refused> {
        if bytes == 0 {
            return Err(Refused::Zero);
        }
        let count = bytes.div_ceil(self.extent);
        let free = match origin {
            Origin::Zero => self.room().saturating_sub(self.promised),
            Origin::Home => MOST_OF_FILE,
        };
        match free.min(self.slots.left()) {
            free if count > free => Err(Refused::Full(count, free)),
            _ => Ok(count),
        }
    }

    /// Makes an object. All its extents are elsewhere than in GPU memory.
    ///
    /// # Errors
    /// No bytes, or more than all tiers together have left.
    pub fn allocate(&mut self, bytes: u64, origin: Origin) -> Result<ObjectId, Refused> {
        let count = self.fits(bytes, origin)?;
        let id = self.tick();
        let (copies, promised) = match origin {
            Origin::Zero => (copy::ZERO, count),
            Origin::Home => (copy::HOME, 0),
        };
        self.promised += promised;
        let extents = (0..count).map(|index| {
            self.slots.add(Slot {
                object: id,
                index,
                copies,
                frames: [0; 3],
                class: Class::Out,
                advice: Advice::Normal,
                holds: 0,
                writers: 0,
                busy: false,
                poisoned: false,
                used: 0,
                written: 0,
            })
        });
        let extents = extents.collect();
        let object = Object {
            bytes,
            extents,
            origin,
            goes: false,
        };
        self.objects.insert(id, object);
        Ok(ObjectId(id))
    }

    pub(super) fn object(&self, id: ObjectId) -> Result<&Object, Refused> {
        match self.objects.get(&id.0) {
            Some(object) if !object.goes => Ok(object),
            None if id.0 == 0 || id.0 > self.clock => Err(Refused::NoObject),
            _ => Err(Refused::Freed),
        }
    }

    /// Bytes of an object.
    ///
    /// # Errors
    /// There is none.
    pub fn bytes(&self, id: ObjectId) -> Result<u64, Refused> {
        Ok(self.object(id)?.bytes)
    }

    /// The extents in which a part lies.
    ///
    /// # Errors
    /// There is no such object, or no such part of it.
    pub fn extents(&self, id: ObjectId, span: Span) -> Result<std::ops::Range<usize>, Refused> {
        let object = self.object(id)?;
        if span.length == 0 {
            return Err(Refused::Zero);
        }
        let end = span.offset.checked_add(span.length);
        let Some(end) = end.filter(|end| *end <= object.bytes) else {
            return Err(Refused::Outside(object.bytes));
        };
        Ok((span.offset / self.extent) as usize..end.div_ceil(self.extent) as usize)
    }

    fn numbers(&self, id: ObjectId, range: std::ops::Range<usize>) -> Vec<u32> {
        self.objects[&id.0].extents[range].to_vec()
    }

    /// Asks for a part of an object in GPU memory. [`Objects::standing`] tells whether it is there already.
    ///
    /// # Errors
    /// It cannot be: there is no such part, it may not be written, or it is larger than GPU memory.
    pub fn acquire(&mut self, id: ObjectId, span: Span, writes: bool) -> Result<TicketId, Refused> {
        let range = self.extents(id, span)?;
        let object = self.object(id)?;
        if writes && object.origin == Origin::Home {
            return Err(Refused::ReadOnly);
        }
        let limit = self.slots.pools[0].limit;
        if range.len() > limit as usize {
            return Err(Refused::TooLarge(range.len() as u64, limit.into()));
        }
        let all = &object.extents[range.clone()];
        let lost = all.iter().find(|at| self.slots.get(**at).poisoned);
        if let Some(at) = lost {
            return Err(Refused::Poisoned(self.slots.get(*at).index));
        }
        let is_there = |at: &u32| {
            let slot = self.slots.get(*at);
            slot.has(copy::HBM) && !slot.busy
        };
        let there = all.iter().all(is_there);
        let ticket = TicketId(self.tick());
        self.tickets.insert(
            ticket.0,
            Ticket {
                object: id.0,
                first: range.start,
                end: range.end,
                writes,
                standing: Standing::Waiting,
                at: range.start,
                told: false,
                stuck: None,
            },
        );
        if there {
            self.hold(ticket.0);
            self.grant(ticket.0);
        } else {
            self.waiting.push_back(ticket.0);
        }
        Ok(ticket)
    }

    pub(super) fn of_ticket(&self, id: u64) -> Vec<u32> {
        let ticket = &self.tickets[&id];
        self.objects[&ticket.object].extents[ticket.first..ticket.end].to_vec()
    }

    /// A ticket holds its extents from now on.
    pub(super) fn hold(&mut self, id: u64) {
        for at in self.of_ticket(id) {
            self.slots.change(at, |slot| slot.holds += 1);
            if self.slots.get(at).has(copy::HBM) {
                self.counts.hits += 1;
                self.touch(at);
            }
        }
    }

    /// All of a ticket is there.
    pub(super) fn grant(&mut self, id: u64) {
        let now = self.tick();
        let writes = self.tickets[&id].writes;
        for at in self.of_ticket(id) {
            self.slots.change(at, |slot| slot.used = now);
            if writes {
                self.slots.drop_copies(at, !copy::HBM);
                self.slots.change(at, |slot| {
                    slot.written = now;
                    slot.writers += 1;
                });
            }
        }
        self.stand(id, Standing::Held);
    }

    pub(super) fn stand(&mut self, id: u64, standing: Standing) {
        if let Some(ticket) = self.tickets.get_mut(&id) {
            ticket.standing = standing;
        }
    }

    /// Where a ticket stands. One that has failed is gone when it was told.
    ///
    /// # Errors
    /// There is no such ticket.
    pub fn standing(&mut self, id: TicketId) -> Result<Standing, Refused> {
        let standing = self.ticket(id)?.standing;
        if let Standing::Failed(_) = standing {
            self.tickets.remove(&id.0);
        }
        Ok(standing)
    }

    fn ticket(&self, id: TicketId) -> Result<&Ticket, Refused> {
        match self.tickets.get(&id.0) {
            Some(ticket) => Ok(ticket),
            None if id.0 == 0 || id.0 > self.clock => Err(Refused::NoTicket),
            None => Err(Refused::Released),
        }
    }

    /// The extents that a ticket holds.
    ///
    /// # Errors
    /// There is no such ticket.
    pub fn held(&self, id: TicketId) -> Result<Vec<u32>, Refused> {
        match self.ticket(id)?.standing {
            Standing::Held => Ok(self.of_ticket(id.0)),
            _ => Ok(Vec::new()),
        }
    }

    /// Gives back what a ticket holds, or gives up that it waits.
    ///
    /// # Errors
    /// There is no such ticket.
    pub fn release(&mut self, id: TicketId) -> Result<(), Refused> {
        let standing = self.ticket(id)?.standing;
        self.waiting.retain(|waiting| *waiting != id.0);
        let served = self.served == Some(id.0);
        if served {
            self.served = None;
        }
        self.given += 1;
        if served || standing == Standing::Held {
            self.let_go(id.0, standing == Standing::Held);
        }
        self.tickets.remove(&id.0);
        Ok(())
    }

    /// The extents of a ticket are no longer held by it.
    pub(super) fn let_go(&mut self, id: u64, granted: bool) {
        let now = self.tick();
        let wrote = granted && self.tickets[&id].writes;
        for at in self.of_ticket(id) {
            self.slots.change(at, |slot| {
                slot.holds -= 1;
                if wrote {
                    slot.writers -= 1;
                    slot.written = now;
                }
            });
            let slot = self.slots.get(at);
            if slot.advice == Advice::Cold && slot.holds == 0 && slot.class == Class::Member {
                self.policy.freed(Extent(at));
                self.slots.change(at, |slot| slot.class = Class::Guest(0));
            }
        }
    }

    /// A ticket comes to nothing.
    pub(super) fn fail(&mut self, id: u64, why: Refused) {
        self.waiting.retain(|waiting| *waiting != id);
        if self.served == Some(id) {
            self.served = None;
            self.let_go(id, false);
        }
        self.stand(id, Standing::Failed(why));
    }

    /// Asks for a part in GPU memory in advance, if that can be. `now`: nanoseconds.
    ///
    /// # Errors
    /// There is no such part.
    pub fn prefetch(&mut self, id: ObjectId, span: Span, now: u64) -> Result<(), Refused> {
        let range = self.extents(id, span)?;
        for at in self.numbers(id, range) {
            let slot = self.slots.get(at);
            if !slot.has(copy::HBM) && !slot.poisoned {
                let wish = Wish {
                    what: at,
                    bytes: self.extent,
                    why: Why::Ahead,
                };
                // What waits already, and what is too much, is not moved ahead.
                let _ = self.ahead.wish(now, wish);
            }
        }
        Ok(())
    }

    /// When to ask for what is next although nothing happens.
    pub fn again_at(&self) -> Option<u64> {
        self.ahead.again_at()
    }

    /// Notes what a program knows about a part; for all extents that it touches.
    ///
    /// # Errors
    /// There is no such part.
    pub fn advise(&mut self, id: ObjectId, span: Span, advice: Advice) -> Result<(), Refused> {
        let range = self.extents(id, span)?;
        self.given += 1;
        for at in self.numbers(id, range) {
            self.slots.change(at, |slot| slot.advice = advice);
            let slot = self.slots.get(at);
            if advice == Advice::Cold && slot.holds == 0 && slot.class != Class::Out {
                self.policy.freed(Extent(at));
                self.slots.change(at, |slot| slot.class = Class::Guest(0));
            }
        }
        Ok(())
    }

    /// Other limits. What is beyond them leaves as soon as it can.
    pub fn limit(&mut self, limits: [u32; 3]) {
        self.given += 1;
        for (pool, limit) in self.slots.pools.iter_mut().zip(limits) {
            pool.limit = limit;
        }
        for tier in [Tier::Hbm, Tier::Host, Tier::File] {
            let over = self.slots.pool(tier).over();
            if over > 0 {
                self.events.push(Event::Over(tier, over));
            }
        }
        // What fitted before may not fit any more.
        let waiting: Vec<u64> = self.waiting.iter().copied().collect();
        for id in waiting {
            let wanted = self.tickets[&id].end - self.tickets[&id].first;
            if wanted > limits[0] as usize {
                self.fail(id, Refused::TooLarge(wanted as u64, limits[0].into()));
            }
        }
    }

    /// The program uses an extent that is in GPU memory.
    fn touch(&mut self, at: u32) {
        match self.slots.get(at).class {
            Class::Member => self.policy.hit(Extent(at)),
            Class::Guest(_) | Class::Out => self.admit(at),
        }
    }

    /// The policy hears of an extent that it does not keep, which comes into GPU memory, or stays there.
    pub(super) fn admit(&mut self, at: u32) {
        let most = self.slots.pools[0].limit.saturating_sub(1).max(1) as usize;
        let answer = self.policy.miss(Extent(at), self.slots.members >= most);
        let order = self.tick();
        let class = match answer {
            Answer::Take | Answer::Replace(_) => Class::Member,
            Answer::Leave => Class::Guest(order),
        };
        if let Answer::Replace(Extent(other)) = answer {
            let order = self.tick();
            self.slots
                .change(other, |slot| slot.class = Class::Guest(order));
        }
        self.slots.change(at, |slot| slot.class = class);
    }

    /// The policy keeps an extent no longer.
    pub(super) fn dismiss(&mut self, at: u32, class: Class) {
        if self.slots.get(at).class == Class::Member {
            self.policy.freed(Extent(at));
        }
        self.slots.change(at, |slot| slot.class = class);
    }
}
