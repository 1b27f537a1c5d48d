//! A call that makes or destroys a MIG instance can be told to wait, so that a test ends its caller right there.

/// The calls, before and after what they do.
const POINTS: [&str; 8] = [
    "before-make-gpu",
    "after-make-gpu",
    "before-make-compute",
    "after-make-compute",
    "before-destroy-compute",
    "after-destroy-compute",
    "before-destroy-gpu",
    "after-destroy-gpu",
];

/// A call that can wait; its first point in [`POINTS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// A GPU instance is made.
    MakeGpu = 0,
    /// A compute instance is made.
    MakeCompute = 2,
    /// A compute instance is destroyed.
    DestroyCompute = 4,
    /// A GPU instance is destroyed.
    DestroyGpu = 6,
}

/// Where the next call waits.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Hold {
    /// 1 and the index in [`POINTS`]; 0 where no call waits.
    point: u32,
    /// Calls that are let through before.
    skip: u32,
    /// The process whose call waits; 0 before it has come.
    pub pid: u32,
    /// Keeps the layout without holes.
    reserved: u32,
}

impl Hold {
    /// The call after `skip` others waits at `point`; `off` lets it go on, and none wait.
    ///
    /// # Errors
    /// A sentence with the points that there are.
    pub fn parse(point: &str, skip: u32) -> Result<Hold, String> {
        let place = POINTS.iter().position(|known| *known == point);
        match place {
            Some(place) => Ok(Hold {
                point: place as u32 + 1,
                skip,
                ..Hold::default()
            }),
            None if point == "off" => Ok(Hold::default()),
            None => Err(format!(
                "'{point}' is no point: give off or one of {}",
                POINTS.join(", ")
            )),
        }
    }

    /// Whether a call waits at `point`, or the next one will.
    pub(crate) fn is_at(&self, point: u32) -> bool {
        self.point == point
    }

    /// A call has come to `point`. Returns whether it is the one that waits.
    pub(crate) fn catch(&mut self, point: u32, pid: u32) -> bool {
        if self.point != point || self.pid != 0 {
            return false;
        }
        match self.skip {
            0 => self.pid = pid,
            _ => self.skip -= 1,
        }
        self.pid != 0
    }
}
