//! What a request has in one PBS, by the names that it has there.

/// Jobs and reservations of a request, by its own numbers.
#[derive(Default)]
pub struct Own {
    /// Jobs, in the order in which they were submitted.
    pub jobs: Vec<String>,
    /// Reservations.
    pub reservations: Vec<String>,
}

/// What stands for a job that was refused.
pub const NO_JOB: &str = "99999999";

impl Own {
    /// Whether there is something to look at.
    pub fn is_there(&self) -> bool {
        !self.reservations.is_empty() || self.jobs.iter().any(|job| job != NO_JOB)
    }

    /// A line with the names of PBS.
    pub fn fill(&self, line: &str) -> String {
        let mut line = line.to_owned();
        for (number, job) in self.jobs.iter().enumerate() {
            line = line.replace(&format!("{{{number}}}"), job);
        }
        let queue = self.reservations.last().map_or("R0", |name| name);
        line.replace("{R}", queue.trim_end_matches(".head"))
    }
}
