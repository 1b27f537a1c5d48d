//! What is moved next, and what has changed when it was.

use super::slots::{Class, copy};
use super::state::Objects;
use super::{Advice, Event, Kind, Next, ObjectId, Outcome, Refused, Spot, Standing, Task, Tier};

impl Objects {
    /// What is to be done now. After a task comes [`Objects::done`], before anything else is asked for. `now`: nanoseconds.
    pub fn next(&mut self, now: u64) -> Next {
        if let Some(task) = self.shrink() {
            return Next::Task(task);
        }
        if self.served.is_none() {
            self.choose();
        }
        if let Some(id) = self.served {
            return self.serve(id);
        }
        self.fetch(now).map_or(Next::Idle, Next::Task)
    }

    fn task(&mut self, at: u32, kind: Kind) -> Task {
        self.slots.change(at, |slot| slot.busy = true);
        let slot = self.slots.get(at);
        Task {
            object: ObjectId(slot.object),
            index: slot.index,
            extent: at,
            kind,
        }
    }

    /// Has a tier come below its limit.
    fn shrink(&mut self) -> Option<Task> {
        if self.slots.pool(Tier::Hbm).over() > 0
            && let Some(task) = self.make_room(false)
        {
            return Some(task);
        }
        while self.slots.pool(Tier::Host).over() > 0 {
            match self.slots.droppable() {
                Some(at) => self.slots.drop_copies(at, copy::HOST),
                None => return self.down(),
            }
        }
        None
    }

    /// The first ticket for which there can be room, without those before it, which others keep waiting.
    fn choose(&mut self) {
        let given = self.given;
        let may = |id: &u64| self.tickets[id].stuck != Some(given);
        let waiting: Vec<u64> = self.waiting.iter().copied().filter(may).collect();
        for id in waiting {
            let extents = self.of_ticket(id);
            let staying = extents.iter().filter(|at| self.slots.get(**at).stays());
            let others = self.slots.staying - staying.count() as u64;
            let limit = u64::from(self.slots.pool(Tier::Hbm).limit);
            let wanted = others + extents.len() as u64;
            if wanted <= limit {
                self.waiting.retain(|waiting| *waiting != id);
                self.hold(id);
                self.served = Some(id);
                return;
            }
            if let Some(ticket) = self.tickets.get_mut(&id).filter(|ticket| !ticket.told) {
                ticket.told = true;
                self.events.push(Event::Wanted((wanted - limit) as u32));
            }
        }
    }

    /// Brings in what a ticket lacks.
    fn serve(&mut self, id: u64) -> Next {
        let extents = self.of_ticket(id);
        let ticket = &self.tickets[&id];
        let done = ticket.at - ticket.first;
        for (nth, at) in extents.into_iter().enumerate().skip(done) {
            let slot = self.slots.get(at);
            if slot.poisoned {
                let index = slot.index;
                self.fail(id, Refused::Poisoned(index));
                return Next::Changed;
            }
            if !slot.has(copy::HBM) {
                if slot.busy {
                    return Next::Idle;
                }
                let task = self.bring(at, false);
                if task.is_none() {
                    self.stick(id);
                }
                return task.map_or(Next::Changed, Next::Task);
            }
            if let Some(ticket) = self.tickets.get_mut(&id) {
                ticket.at = ticket.first + nth + 1;
            }
        }
        self.served = None;
        self.grant(id);
        Next::Changed
    }

    /// Nothing can leave for a ticket: it waits until others give something back, or comes to nothing where nobody has anything.
    fn stick(&mut self, id: u64) {
        let own = self.of_ticket(id);
        let own = own.iter().filter(|at| self.slots.get(**at).stays()).count();
        if self.slots.staying == own as u64 {
            self.fail(id, Refused::NoRoom);
            return;
        }
        self.served = None;
        self.let_go(id, false);
        self.waiting.push_front(id);
        let given = self.given;
        if let Some(ticket) = self.tickets.get_mut(&id) {
            ticket.stuck = Some(given);
            ticket.at = ticket.first;
            if !ticket.told {
                ticket.told = true;
                self.events.push(Event::Wanted(1));
            }
        }
    }

    /// Brings an extent in, or makes room for it first. `ahead`: only by what the policy would not keep.
    fn bring(&mut self, at: u32, ahead: bool) -> Option<Task> {
        if self.slots.get(at).class == Class::Out {
            self.admit(at);
        }
        let frame = self.slots.pool(Tier::Hbm).take();
        let task = match frame {
            Some(frame) => {
                let from = self.slots.get(at).source();
                Some(self.task(at, Kind::In { frame, from }))
            }
            None => self.make_room(ahead),
        };
        if task.is_none() {
            self.dismiss(at, Class::Out);
        }
        task
    }

    /// One extent leaves GPU memory, or what stands in its way does.
    fn make_room(&mut self, ahead: bool) -> Option<Task> {
        for clean in [false, true] {
            let at = self.victim(ahead, clean)?;
            // Until it has left it is the first to go.
            self.dismiss(at, Class::Guest(0));
            if let Some(task) = self.leave(at) {
                return Some(task);
            }
        }
        None
    }

    /// The extent that leaves next. `clean`: of those that have a copy elsewhere.
    fn victim(&self, ahead: bool, clean: bool) -> Option<u32> {
        let fits = |at: &u32| {
            let slot = self.slots.get(*at);
            slot.can_leave() && (!clean || slot.has_beside(copy::HBM))
        };
        let second = |(_, at): &(u64, u32)| *at;
        let cool = |at: &u32| self.slots.get(*at).advice != Advice::Hot;
        let mut guests = self.slots.guests.iter().map(second).filter(fits);
        let guest = guests.find(cool);
        if guest.is_some() || ahead {
            return guest;
        }
        let all = || self.slots.resident.iter().map(second).filter(fits);
        all().find(cool).or_else(|| all().next())
    }

    fn leave(&mut self, at: u32) -> Option<Task> {
        let slot = self.slots.get(at);
        let frame = slot.frames[0];
        let to = if slot.has_beside(copy::HBM) {
            None
        } else if let Some(host) = self.host_frame() {
            Some(Spot::Host(host))
        } else if let Some(task) = self.down() {
            return Some(task);
        } else {
            Some(Spot::File(self.slots.pool(Tier::File).take()?))
        };
        Some(self.task(at, Kind::Out { frame, to }))
    }

    fn host_frame(&mut self) -> Option<u32> {
        if self.slots.pool(Tier::Host).over() == 0
            && let Some(frame) = self.slots.pool(Tier::Host).take()
        {
            return Some(frame);
        }
        let at = self.slots.droppable()?;
        self.slots.drop_copies(at, copy::HOST);
        self.slots.pool(Tier::Host).take()
    }

    /// The extent of host memory that was not used for longest goes to the file.
    fn down(&mut self) -> Option<Task> {
        let free = |(_, at): &&(u64, u32)| !self.slots.get(*at).busy;
        let at = self.slots.sole.iter().find(free)?.1;
        let slot = self.slots.pool(Tier::File).take()?;
        let frame = self.slots.get(at).frames[Tier::Host as usize];
        Some(self.task(at, Kind::Down { frame, slot }))
    }

    /// Brings something in ahead.
    fn fetch(&mut self, now: u64) -> Option<Task> {
        loop {
            let at = match self.coming {
                Some(at) => at,
                None => self.ahead.begin(now)?.what,
            };
            self.coming = Some(at);
            let slot = self.slots.get(at);
            let pool = &self.slots.pools[Tier::Hbm as usize];
            let full = pool.used >= pool.limit && self.slots.staying >= u64::from(pool.used);
            if !slot.has(copy::HBM) && !slot.poisoned && !slot.busy && !full {
                if self.slots.get(at).class == Class::Out {
                    self.admit(at);
                }
                // The policy would not keep it: it would be the first to leave again.
                let wanted = self.slots.get(at).class == Class::Member;
                let task = if wanted { self.bring(at, true) } else { None };
                if task.is_some() {
                    return task;
                }
                self.dismiss(at, Class::Out);
            }
            self.coming = None;
            self.ahead.ended(now, at);
        }
    }

    /// How a task went. `now`: nanoseconds.
    pub fn done(&mut self, task: &Task, outcome: Outcome, now: u64) {
        let at = task.extent;
        self.slots.change(at, |slot| slot.busy = false);
        match task.kind {
            Kind::In { frame, from } => self.brought(at, frame, from, outcome),
            Kind::Out { frame: _, to } => self.left(at, to, outcome),
            Kind::Down { frame: _, slot } => self.filed(at, slot, outcome),
        }
        if self.coming == Some(at) {
            self.coming = None;
            self.ahead.ended(now, at);
            if outcome == Outcome::Done {
                self.counts.ahead += 1;
            }
        }
    }

    fn brought(&mut self, at: u32, frame: u32, from: Spot, outcome: Outcome) {
        match outcome {
            Outcome::Done => {
                self.slots.add_copy(at, Tier::Hbm, frame);
                self.counts.brought += 1;
            }
            Outcome::NoTarget => {
                self.dismiss(at, Class::Out);
                self.slots.pool(Tier::Hbm).give(frame);
                self.less(Tier::Hbm);
            }
            Outcome::Lost => {
                self.slots.pool(Tier::Hbm).give(frame);
                let index = self.slots.get(at).index;
                // A mapped file may be whole again later.
                let why = if from == Spot::Home {
                    Refused::Unreadable(index)
                } else {
                    self.poison(at);
                    Refused::Poisoned(index)
                };
                self.dismiss(at, Class::Out);
                let waits = self.served.filter(|id| self.of_ticket(*id).contains(&at));
                if let Some(id) = waits {
                    self.fail(id, why);
                }
            }
        }
    }

    fn left(&mut self, at: u32, to: Option<Spot>, outcome: Outcome) {
        let target = match to {
            Some(Spot::Host(frame)) => Some((Tier::Host, frame)),
            Some(Spot::File(slot)) => Some((Tier::File, slot)),
            _ => None,
        };
        match (outcome, target) {
            (Outcome::Done, target) => {
                self.dismiss(at, Class::Out);
                self.slots.drop_copies(at, copy::HBM);
                if let Some((tier, frame)) = target {
                    self.slots.add_copy(at, tier, frame);
                    self.counts.copied += 1;
                    self.counts.filed += u64::from(tier == Tier::File);
                } else {
                    self.counts.dropped += 1;
                }
            }
            (Outcome::NoTarget, Some((tier, frame))) => {
                self.slots.pool(tier).give(frame);
                self.less(tier);
            }
            (_, target) => {
                if let Some((tier, frame)) = target {
                    self.slots.pool(tier).give(frame);
                }
                self.dismiss(at, Class::Out);
                if self.slots.get(at).has_beside(copy::HBM) {
                    self.slots.drop_copies(at, copy::HBM);
                } else {
                    self.poison(at);
                }
            }
        }
    }

    fn filed(&mut self, at: u32, slot: u32, outcome: Outcome) {
        if outcome == Outcome::Done {
            self.slots.add_copy(at, Tier::File, slot);
            self.slots.drop_copies(at, copy::HOST);
            self.counts.filed += 1;
        } else {
            self.slots.pool(Tier::File).give(slot);
            self.less(Tier::File);
        }
    }

    /// A tier has no more than is used of it now.
    fn less(&mut self, tier: Tier) {
        let pool = self.slots.pool(tier);
        pool.limit = pool.used;
        let used = pool.used;
        self.events.push(Event::Less(tier, used));
        // Tickets that wait for more than that come to nothing.
        let limit = self.slots.pool(Tier::Hbm).limit as usize;
        let too_large = |(id, ticket): (&u64, &super::state::Ticket)| {
            let wanted = ticket.end - ticket.first;
            (ticket.standing == Standing::Waiting && wanted > limit).then_some((*id, wanted))
        };
        let all: Vec<(u64, usize)> = self.tickets.iter().filter_map(too_large).collect();
        for (id, wanted) in all {
            self.fail(id, Refused::TooLarge(wanted as u64, limit as u64));
        }
    }

    pub(super) fn poison(&mut self, at: u32) {
        self.slots.drop_copies(at, u8::MAX);
        self.slots.change(at, |slot| slot.poisoned = true);
        self.counts.poisoned += 1;
    }
}
