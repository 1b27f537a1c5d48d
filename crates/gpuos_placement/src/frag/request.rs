//! A request, and the idle part of one node as it matters to requests.

/// Thousandths of a GPU in one GPU.
pub const MILLI: u16 = 1000;
/// The most GPUs that one node can have here.
pub const MAX_DEVICES: usize = 16;

/// What a job asks of one node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Request {
    /// Thousandths of a core.
    pub cpu: u32,
    /// Memory, in MiB.
    pub memory: u32,
    /// GPUs; 0 for a job without any.
    pub gpus: u8,
    /// Thousandths that it takes of each of them. Below [`MILLI`] it shares one GPU, and `gpus`
    /// is 1.
    pub share: u16,
    /// GPU models that it may run on: bit `i` is model `i`. All ones when it does not care.
    pub models: u64,
}

impl Request {
    /// GPUs that it takes altogether, in thousandths of a GPU.
    pub fn milli(&self) -> u32 {
        u32::from(self.gpus) * u32::from(self.share)
    }

    /// Whether it takes a part of one GPU.
    pub fn shares(&self) -> bool {
        self.gpus == 1 && self.share < MILLI
    }
}

/// Which GPU of a state a request takes: an index into [`State::free`]. Requests for whole GPUs
/// and for none take the same GPUs in every slot.
pub type Slot = usize;

/// The idle part of a node. Which GPU is which does not matter to its worth, so that the free
/// thousandths stand in ascending order, and equal states compare equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// Idle thousandths of a core.
    pub cpu: u32,
    /// Idle memory, in MiB.
    pub memory: u32,
    /// Free thousandths of each GPU, ascending; absent GPUs count as full and come first.
    pub free: [u16; MAX_DEVICES],
    /// GPUs of the node, idle or not.
    pub gpus: u8,
    /// Their model.
    pub model: u8,
    /// Which nodes of the cluster are alike when idle: see [`super::Node::kind`].
    pub kind: u8,
}

impl State {
    /// Idle thousandths over all GPUs.
    pub fn idle(&self) -> u32 {
        self.free.iter().map(|&milli| u32::from(milli)).sum()
    }

    /// GPUs that nobody uses.
    pub fn whole(&self) -> usize {
        self.free.iter().filter(|&&milli| milli == MILLI).count()
    }

    /// Whether the GPUs of this state are of a model that the request accepts.
    pub fn accepts(&self, request: &Request) -> bool {
        request.models >> (self.model & 63) & 1 == 1
    }

    /// Whether the GPUs alone have room; cores, memory and model are not looked at.
    pub fn gpus_fit(&self, request: &Request) -> bool {
        match usize::from(request.gpus) {
            0 => true,
            wanted if wanted > MAX_DEVICES => false,
            wanted => self.free[MAX_DEVICES - wanted] >= request.share,
        }
    }

    /// Whether the request can start in this state.
    pub fn fits(&self, request: &Request) -> bool {
        self.cpu >= request.cpu
            && self.memory >= request.memory
            && (request.gpus == 0 || self.accepts(request))
            && self.gpus_fit(request)
    }

    /// The slots that make a difference to a request: one for each amount of free thousandths
    /// that has room for a sharing request, one altogether for the others. Empty when the GPUs
    /// have no room.
    pub fn slots(&self, request: &Request) -> impl Iterator<Item = Slot> + use<> {
        let (free, share, sharing) = (self.free, request.share, request.shares());
        let fits = self.gpus_fit(request);
        (0..MAX_DEVICES).filter(move |&slot| {
            let new = slot == 0 || free[slot] != free[slot - 1];
            fits && if sharing {
                free[slot] >= share && new
            } else {
                slot == MAX_DEVICES - 1
            }
        })
    }

    /// The state after the request has started with the GPU of `slot`. Only for a request that
    /// fits.
    pub fn after(&self, request: &Request, slot: Slot) -> State {
        let mut next = *self;
        next.cpu = next.cpu.saturating_sub(request.cpu);
        next.memory = next.memory.saturating_sub(request.memory);
        if request.shares() {
            take_share(&mut next.free, slot, request.share);
        } else {
            take_whole(&mut next.free, usize::from(request.gpus));
        }
        next
    }
}

/// Takes `share` of the GPU in `slot` and keeps the order.
pub(super) fn take_share(free: &mut [u16; MAX_DEVICES], slot: Slot, share: u16) {
    let left = free[slot].saturating_sub(share);
    let mut at = slot;
    while at > 0 && free[at - 1] > left {
        free[at] = free[at - 1];
        at -= 1;
    }
    free[at] = left;
}

/// Takes `count` whole GPUs, which are the last ones, and keeps the order.
pub(super) fn take_whole(free: &mut [u16; MAX_DEVICES], count: usize) {
    let count = count.min(MAX_DEVICES);
    free.copy_within(0..MAX_DEVICES - count, count);
    free[..count].fill(0);
}
