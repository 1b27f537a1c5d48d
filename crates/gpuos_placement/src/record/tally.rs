//! How often gpuos could choose and how often its choices were taken: counters at the head of a ring,
//! which outlive slurmctld.
use super::bytes::{store, u64_at};

/// Where the counters stand in a ring, in the order of [`Tally::values`].
const AT: usize = 64;
const COUNT: usize = 8;

/// Counters since the ring was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Calls about a job with GPUs that gpuos looked into, to start it or to forecast its start.
    pub calls: u64,
    /// Jobs that got the place which gpuos chose.
    pub placed: u64,
    /// Jobs for which there was only one place.
    pub only_way: u64,
    /// Jobs that cons_tres placed by itself after it had refused what gpuos offered, or gpuos had
    /// nothing to offer.
    pub left: u64,
    /// Jobs that were left to cons_tres unasked: in forms that gpuos does not plan for, or with
    /// `--gpuos=off`.
    pub unplanned: u64,
    /// Choices that were offered to cons_tres.
    pub offers: u64,
    /// Those of them that it refused.
    pub refused: u64,
    /// Times that nodes were left out for what an earlier refusal had taught.
    pub spared: u64,
}

impl Tally {
    /// Of the jobs that started where there was a choice, the part that gpuos placed, in percent;
    /// `None` when there was none.
    pub fn steered_percent(&self) -> Option<f64> {
        let all = self.placed + self.left;
        (all > 0).then(|| self.placed as f64 * 100.0 / all as f64)
    }

    /// Refused offers in 100 calls; `None` when there was no call.
    pub fn refused_percent(&self) -> Option<f64> {
        (self.calls > 0).then(|| self.refused as f64 * 100.0 / self.calls as f64)
    }

    /// What has been counted since an earlier reading of the same ring.
    pub fn since(&self, earlier: &Tally) -> Tally {
        let mut values = self.values();
        let before = earlier.values();
        values
            .iter_mut()
            .zip(before)
            .for_each(|(value, before)| *value = value.saturating_sub(before));
        Tally::of(values)
    }

    fn values(&self) -> [u64; COUNT] {
        [
            self.calls,
            self.placed,
            self.only_way,
            self.left,
            self.unplanned,
            self.offers,
            self.refused,
            self.spared,
        ]
    }

    fn of(values: [u64; COUNT]) -> Tally {
        let [
            calls,
            placed,
            only_way,
            left,
            unplanned,
            offers,
            refused,
            spared,
        ] = values;
        Tally {
            calls,
            placed,
            only_way,
            left,
            unplanned,
            offers,
            refused,
            spared,
        }
    }

    /// Reads the counters of a ring, which begins with these bytes.
    pub(super) fn read(bytes: &[u8]) -> Tally {
        Tally::of(std::array::from_fn(|n| u64_at(bytes, AT + n * 8)))
    }

    /// Stores them.
    pub(super) fn write(&self, bytes: &mut [u8]) {
        for (n, value) in self.values().iter().enumerate() {
            store(bytes, AT + n * 8, &value.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_come_back_as_they_were_stored() {
        let tally = Tally::of([1, 2, 3, 4, 5, 6, 7, 8]);
        let mut bytes = [0; 256];
        tally.write(&mut bytes);
        assert_eq!(Tally::read(&bytes), tally);
        assert_eq!(Tally::read(&[]), Tally::default());
        let more = Tally::of([11, 4, 3, 4, 5, 6, 9, 8]);
        assert_eq!(more.since(&tally), Tally::of([10, 2, 0, 0, 0, 0, 2, 0]));
        assert_eq!(tally.steered_percent(), Some(200.0 / 6.0));
        assert_eq!(tally.refused_percent(), Some(700.0));
        assert_eq!(Tally::default().steered_percent(), None);
    }
}
