//! Accounting of a lab: a MariaDB and a slurmdbd of its own, so that jobs have accounts and QOS.
//!
//! MariaDB keeps its tables in the lab's folder and is reached by a Unix socket there alone; only root may
//! log in. slurmdbd listens where slurmctld does.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;

use crate::daemons::Daemons;
use crate::error::{Context, LabError};
use crate::install::inside;
use crate::store::Record;

/// What to install for it.
const PACKAGES: &str = "a lab with accounting needs slurmdbd and MariaDB, which the folders of Debian suites lack; with the Slurm of a Debian machine: apt-get install slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core";

/// A database that is empty but for accounts: small files and little memory.
const SMALL: [&str; 2] = ["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M"];

/// Keys of slurm.conf.
pub(crate) fn slurm_conf_keys(record: &Record, address: Ipv4Addr) -> [(&'static str, String); 4] {
    [
        (
            "AccountingStorageType",
            "accounting_storage/slurmdbd".to_string(),
        ),
        // With munge this is where its socket is.
        (
            "AccountingStoragePass",
            format!("socket={}", record.path("munge/socket").display()),
        ),
        ("AccountingStorageHost", address.to_string()),
        (
            "AccountingStoragePort",
            record.accounting_port().to_string(),
        ),
    ]
}

fn slurmdbd_conf(record: &Record, stock: &Path, address: Option<Ipv4Addr>) -> String {
    let dir = record.dir.display();
    let mut lines = vec![
        "AuthType=auth/munge".to_string(),
        format!("AuthInfo=socket={dir}/munge/socket"),
        "DbdHost=localhost".to_string(),
        format!("DbdAddr={}", address.unwrap_or(Ipv4Addr::LOCALHOST)),
        format!("DbdPort={}", record.accounting_port()),
        "SlurmUser=root".to_string(),
        "StorageType=accounting_storage/mysql".to_string(),
        // By the socket that $MYSQL_UNIX_PORT names.
        "StorageHost=localhost".to_string(),
        "StorageUser=root".to_string(),
        "StorageLoc=slurm".to_string(),
        format!("PidFile={dir}/run/slurmdbd.pid"),
        format!("LogFile={dir}/log/slurmdbd.log"),
        format!("PluginDir={}", stock.display()),
    ];
    if address.is_some() {
        lines.push("CommunicationParameters=NoInAddrAny".to_string());
    }
    lines.join("\n") + "\n"
}

impl Daemons<'_> {
    /// Writes slurmdbd.conf and makes an empty database, where all is there that both need.
    pub(crate) fn prepare_accounting(&self) -> Result<(), LabError> {
        let plugin = self.install.plugin_dir.join("accounting_storage_mysql.so");
        let needed = [
            "mariadbd",
            "mariadb-install-db",
            "my_print_defaults",
            "slurmdbd",
            "sacctmgr",
        ];
        let programs = needed.map(|name| (name, self.install.has(name)));
        let root = self.install.root.as_deref();
        let plugins = [(
            "accounting_storage_mysql.so",
            inside(root, &plugin).is_file(),
        )];
        if let Some((missing, _)) = programs.iter().chain(&plugins).find(|(_, there)| !there) {
            return Err(LabError::Missing {
                program: missing.to_string(),
                fix: PACKAGES.to_string(),
            });
        }
        let path = self.record.path("etc/slurmdbd.conf");
        let address = self.install.loopback();
        let text = slurmdbd_conf(self.record, &self.install.plugin_dir, address);
        let mut options = fs::OpenOptions::new();
        // slurmdbd reads no file that others may read: it can hold a password.
        options
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
            .context(|| format!("cannot write {}", path.display()))?;
        self.make_database()
    }

    fn socket(&self) -> PathBuf {
        self.record.path("db/socket")
    }

    fn data(&self) -> String {
        format!("--datadir={}", self.record.path("db/data").display())
    }

    /// Fills the lab's folder with MariaDB's own tables.
    fn make_database(&self) -> Result<(), LabError> {
        let dir = self.record.path("db");
        fs::create_dir_all(&dir).context(|| format!("cannot make {}", dir.display()))?;
        let mut command = self.command("mariadb-install-db", false)?;
        // root logs in by being root.
        command.args([
            "--no-defaults",
            &self.data(),
            "--user=root",
            "--skip-test-db",
        ]);
        command.args([
            "--auth-root-authentication-method=socket",
            "--auth-root-socket-user=root",
        ]);
        let out = command
            .args(SMALL)
            .output()
            .context(|| "cannot run mariadb-install-db".to_string())?;
        if out.status.success() {
            return Ok(());
        }
        let text = [out.stdout, out.stderr].concat();
        Err(LabError::Command {
            command: "mariadb-install-db".to_string(),
            status: out.status.to_string(),
            stderr: String::from_utf8_lossy(&text).into_owned(),
        })
    }

    pub(crate) fn start_mariadbd(&self) -> Result<Child, LabError> {
        let mut command = self.command("mariadbd", true)?;
        command.args([
            "--no-defaults",
            &self.data(),
            "--user=root",
            "--skip-networking",
        ]);
        command.arg(format!("--socket={}", self.socket().display()));
        let pid = self.record.path("run/mariadbd.pid");
        command.arg(format!("--pid-file={}", pid.display()));
        command.args(SMALL).arg("--performance-schema=OFF");
        let mut child = self.spawn("mariadbd", command)?;
        self.wait("mariadbd", &mut child, || {
            UnixStream::connect(self.socket()).is_ok()
        })?;
        Ok(child)
    }

    pub(crate) fn start_slurmdbd(&self) -> Result<Child, LabError> {
        let mut command = self.command("slurmdbd", true)?;
        command.arg("-D").env("MYSQL_UNIX_PORT", self.socket());
        let mut child = self.spawn("slurmdbd", command)?;
        self.wait("slurmdbd", &mut child, || {
            self.pid("slurmdbd").is_some()
                && TcpStream::connect(("127.0.0.1", self.record.accounting_port())).is_ok()
        })?;
        Ok(child)
    }
}
