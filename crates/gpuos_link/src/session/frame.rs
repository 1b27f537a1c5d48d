//! Frames of a session: sealed by one side, opened by the other.
//!
//! ```text
//!  length of the body, u32 little-endian │ kind, u8 │ body │ MAC, 32 bytes
//! ```
//!
//! The MAC is keyed BLAKE3 over the frame's number (u64 little-endian, not sent), the header and the body.

use super::fault::Fault;
use super::gather::Gather;

/// Bytes before the body: the length and the kind.
pub const HEADER: usize = 5;

/// Bytes behind the body.
pub const MAC: usize = 32;

/// What a frame has besides its body, in bytes.
pub const FRAME_OVERHEAD: usize = HEADER + MAC;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The end of the handshake: this side has the keys. The first frame of each direction, and no other.
    Confirm,
    /// A message of the caller.
    Data,
    /// Nothing, so that the other side hears something.
    Alive,
    /// The last frame of this direction.
    Close,
}

impl Kind {
    fn byte(self) -> u8 {
        match self {
            Kind::Confirm => 0,
            Kind::Data => 1,
            Kind::Alive => 2,
            Kind::Close => 3,
        }
    }

    fn of(byte: u8) -> Result<Kind, Fault> {
        let all = [Kind::Confirm, Kind::Data, Kind::Alive, Kind::Close];
        let known = all.into_iter().find(|kind| kind.byte() == byte);
        known.ok_or(Fault::Kind(byte))
    }
}

/// A frame that was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// What it is: never [`Kind::Confirm`], which ends the handshake.
    pub kind: Kind,
    /// The body.
    pub body: Vec<u8>,
}

/// What is to be sent before and behind a body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sealed {
    /// Length and kind.
    pub header: [u8; HEADER],
    /// The authentication code.
    pub mac: [u8; MAC],
}

impl Sealed {
    /// The whole frame in one piece.
    pub fn with(&self, body: &[u8]) -> Vec<u8> {
        [&self.header, body, &self.mac].concat()
    }
}

/// The sending direction of a session.
#[derive(Debug)]
pub struct Sealer {
    key: Key,
    limit: usize,
}

impl Sealer {
    pub(super) fn new(key: [u8; 32], limit: usize) -> Sealer {
        Sealer {
            key: Key { key, count: 0 },
            limit,
        }
    }

    /// Seals the next frame. All that is sealed has to be sent, in this order.
    ///
    /// # Errors
    /// The body is longer than the limit, or the counter is used up.
    pub fn seal(&mut self, kind: Kind, body: &[u8]) -> Result<Sealed, Fault> {
        let fits = u32::try_from(body.len()).ok();
        let fits = fits.filter(|_| body.len() <= self.limit);
        let length = fits.ok_or(Fault::Length {
            length: body.len() as u64,
            limit: self.limit,
        })?;
        let [a, b, c, d] = length.to_le_bytes();
        let header = [a, b, c, d, kind.byte()];
        let mac = *self.key.mac(header, body)?.as_bytes();
        Ok(Sealed { header, mac })
    }

    /// The longest body, in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }
}

/// The receiving direction of a session.
#[derive(Debug)]
pub struct Opener {
    key: Key,
    limit: usize,
    header: Gather,
    rest: Gather,
    over: bool,
}

impl Opener {
    pub(super) fn new(key: [u8; 32], limit: usize) -> Opener {
        Opener {
            key: Key { key, count: 0 },
            limit,
            header: Gather::default(),
            rest: Gather::default(),
            over: false,
        }
    }

    /// Takes bytes as they came in, up to the end of a frame, and tells how many it took; the caller goes on with the others.
    ///
    /// # Errors
    /// What came in is no frame that is due. Nothing is taken after that, nor after [`Kind::Close`].
    pub fn feed(&mut self, input: &[u8]) -> Result<(usize, Option<Frame>), Fault> {
        let fed = self.feed_any(input);
        match fed {
            // A second one would begin the session anew.
            Ok((
                _,
                Some(Frame {
                    kind: Kind::Confirm,
                    ..
                }),
            )) => {
                self.over = true;
                Err(Fault::Kind(Kind::Confirm.byte()))
            }
            fed => fed,
        }
    }

    /// The first frame of the other side, which holds nothing and ends the handshake.
    pub(super) fn feed_confirm(&mut self, input: &[u8]) -> Result<(usize, bool), Fault> {
        match self.feed_any(input)? {
            (used, None) => Ok((used, false)),
            (used, Some(frame)) if frame.kind == Kind::Confirm && frame.body.is_empty() => {
                Ok((used, true))
            }
            (_, Some(frame)) => Err(Fault::Kind(frame.kind.byte())),
        }
    }

    fn feed_any(&mut self, input: &[u8]) -> Result<(usize, Option<Frame>), Fault> {
        if self.over {
            return Err(Fault::Over);
        }
        let fed = self.collect(input);
        let closes = |(_, frame): &(usize, Option<Frame>)| matches!(frame, Some(frame) if frame.kind == Kind::Close);
        self.over = fed.as_ref().map_or(true, closes);
        fed
    }

    fn collect(&mut self, input: &[u8]) -> Result<(usize, Option<Frame>), Fault> {
        let mut used = self.header.take(input, HEADER);
        let Ok(header) = <[u8; HEADER]>::try_from(self.header.bytes()) else {
            return Ok((used, None));
        };
        let [a, b, c, d, kind] = header;
        let announced = u32::from_le_bytes([a, b, c, d]);
        // Whoever has confirmed nothing has nothing to say.
        let limit = if self.key.count == 0 { 0 } else { self.limit };
        let length = usize::try_from(announced).ok();
        let length = length.filter(|length| *length <= limit);
        let length = length.ok_or(Fault::Length {
            length: announced.into(),
            limit,
        })?;
        let wanted = length.saturating_add(MAC);
        used += self.rest.take(&input[used..], wanted);
        if self.rest.len() < wanted {
            return Ok((used, None));
        }
        let mut body = self.rest.finish();
        self.header = Gather::default();
        let claimed: [u8; MAC] = body[length..].try_into().map_err(|_| Fault::Mac)?;
        body.truncate(length);
        // The comparison of two hashes takes the same time wherever they differ.
        if self.key.mac(header, &body)? != blake3::Hash::from_bytes(claimed) {
            return Err(Fault::Mac);
        }
        let kind = Kind::of(kind)?;
        Ok((used, Some(Frame { kind, body })))
    }

    /// Memory that is held for the frame that comes in, in bytes: at most twice what of it has arrived.
    pub fn held(&self) -> usize {
        self.header.held() + self.rest.held()
    }
}

/// A key and the number of the next frame that it authenticates.
struct Key {
    key: [u8; 32],
    count: u64,
}

impl std::fmt::Debug for Key {
    /// The key is nobody's business.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key, frame {}", self.count)
    }
}

impl Key {
    fn mac(&mut self, header: [u8; HEADER], body: &[u8]) -> Result<blake3::Hash, Fault> {
        let next = self.count.checked_add(1).ok_or(Fault::Counter)?;
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&self.count.to_le_bytes());
        hasher.update(&header);
        hasher.update(body);
        self.count = next;
        Ok(hasher.finalize())
    }
}
