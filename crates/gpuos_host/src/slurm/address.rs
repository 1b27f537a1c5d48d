//! Where other nodes are, by this node's slurm.conf, and whether their slurmds answer.

use std::io::{ErrorKind, Read as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use gpuos_config::slurm_conf::Addresses;
use gpuos_core::peers::ManagerAnswer;

use super::local::{conf_folder, text};
use crate::Machine;

/// After a connection is made, slurmd gets at least so long.
const LEAST: Duration = Duration::from_millis(300);

/// The addresses in slurm.conf as slurmd reads it. slurmctld is not asked, for thousands of nodes would ask it.
///
/// # Errors
/// There is no slurm.conf, or it cannot be read; the sentence names it.
pub fn addresses(machine: &dyn Machine) -> Result<Addresses, String> {
    let folder = conf_folder(machine).ok_or(
        "there is no slurm.conf in /etc/slurm or /run/slurm/conf: set SLURM_CONF to its path for the daemon",
    )?;
    Addresses::read(&|name| text(machine, &folder.join(name)))
}

/// Connects to a slurmd, says nothing, and waits until it ends the connection; slurmd notes one line of that in its
/// log. A connection alone would tell of the node's kernel only.
pub fn ask_slurmd(address: SocketAddr, limit: Duration) -> ManagerAnswer {
    let deadline = Instant::now() + limit;
    let Ok(mut stream) = TcpStream::connect_timeout(&address, limit) else {
        return ManagerAnswer::Gone;
    };
    let rest = deadline
        .saturating_duration_since(Instant::now())
        .max(LEAST);
    let _ = stream.set_read_timeout(Some(rest));
    let _ = stream.shutdown(Shutdown::Write);
    match stream.read(&mut [0; 64]) {
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            ManagerAnswer::Mute
        }
        // An end, a reset or an answer: somebody took the connection and ended it.
        _ => ManagerAnswer::Answers,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn who_ends_the_connection_answers() {
        let limit = Duration::from_millis(400);
        // An address of its own: on 127.0.0.1 another test could be given the port once it is free.
        let listener = TcpListener::bind("127.86.11.5:0").unwrap();
        let address = listener.local_addr().unwrap();
        // The kernel takes it, and nobody else does.
        assert_eq!(ask_slurmd(address, limit), ManagerAnswer::Mute);
        let server = thread::spawn(move || {
            // The first one is the connection above.
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 8]);
        });
        let long = Duration::from_secs(60);
        assert_eq!(ask_slurmd(address, long), ManagerAnswer::Answers);
        server.join().unwrap();
        // A child that another test starts just now has the socket as well, until it runs its program.
        let deadline = Instant::now() + long;
        while ask_slurmd(address, limit) != ManagerAnswer::Gone {
            assert!(Instant::now() < deadline, "somebody takes connections");
        }
    }
}
