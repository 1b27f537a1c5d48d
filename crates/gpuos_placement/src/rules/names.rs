//! Names of users, accounts, partitions and classes as numbers that are quick to compare.
use std::collections::HashMap;

/// The number of a name that nobody holds.
pub const UNKNOWN: u32 = u32::MAX;
/// The number of a class that a job does not have.
pub const NONE: u32 = u32::MAX - 1;

/// Names that rules or running jobs hold. Jobs may bring any class, so a name goes with the last who held it;
/// its number does not come back.
#[derive(Debug, Default)]
pub struct Names {
    of: HashMap<String, u32>,
    /// By number: the name and how often it is held.
    all: HashMap<u32, (String, u32)>,
    next: u32,
}

impl Names {
    /// Holds a name once more; its number.
    pub fn hold(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.of.get(name) {
            if let Some((_, held)) = self.all.get_mut(&number) {
                *held += 1;
            }
            return number;
        }
        // After four billion names the first ones are long gone, but for those of the rules.
        while self.next >= NONE || self.all.contains_key(&self.next) {
            self.next = if self.next >= NONE { 0 } else { self.next + 1 };
        }
        let number = self.next;
        self.next += 1;
        self.of.insert(name.into(), number);
        self.all.insert(number, (name.into(), 1));
        number
    }

    /// Gives a number back that [`Names::hold`] gave; any other is none.
    pub fn release(&mut self, number: u32) {
        let Some((name, held)) = self.all.get_mut(&number) else {
            return;
        };
        *held -= 1;
        if *held == 0 {
            self.of.remove(name);
            self.all.remove(&number);
        }
    }

    /// The number of a name, or [`UNKNOWN`].
    pub fn known(&self, name: &str) -> u32 {
        self.of.get(name).copied().unwrap_or(UNKNOWN)
    }

    /// The name of a number; empty when nobody holds it.
    pub fn text(&self, number: u32) -> &str {
        self.all.get(&number).map_or("", |(name, _)| name)
    }

    /// How many names are held.
    pub fn len(&self) -> usize {
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_goes_with_the_last_who_held_it() {
        let mut names = Names::default();
        let (a, b) = (names.hold("a"), names.hold("b"));
        assert_eq!((names.hold("a"), names.len()), (a, 2));
        names.release(a);
        assert_eq!((names.known("a"), names.text(a)), (a, "a"));
        names.release(a);
        assert_eq!((names.known("a"), names.text(a)), (UNKNOWN, ""));
        names.release(a);
        names.release(NONE);
        let again = names.hold("a");
        assert!(again != a && again != b);
        assert_eq!((names.known("b"), names.len()), (b, 2));
        // Numbers that are left are passed over when the count begins anew.
        names.next = NONE - 1;
        assert_eq!(names.hold("c"), NONE - 1);
        let d = names.hold("d");
        assert!(![b, again, NONE, UNKNOWN].contains(&d), "{d}");
    }
}
