"""JupyterHub for a class on one machine. README.md beside this file says how to install it.

What a teacher changes stands in the first lines; each can also be set in the hub's environment.
"""

import os
import resource
import sys
from pathlib import Path

from jupyterhub.spawner import LocalProcessSpawner

COURSE = Path(os.environ.get("COURSE_HUB_COURSE", "/opt/course"))  # the unpacked student bundle
PYTHON = Path(os.environ.get("COURSE_HUB_PYTHON", COURSE / ".venv" / "bin" / "python"))
STATE = Path(os.environ.get("COURSE_HUB_STATE", "/srv/jupyterhub"))
ADDRESS = os.environ.get("COURSE_HUB_ADDRESS", "http://127.0.0.1:8000")
GROUP = os.environ.get("COURSE_HUB_GROUP", "learners")  # whoever is in it may log in
ADMINS = set(os.environ.get("COURSE_HUB_ADMINS", "").split())
MEMORY = int(os.environ.get("COURSE_HUB_MEMORY_MIB", "2048"))  # for each learner
CPUS = float(os.environ.get("COURSE_HUB_CPUS", "1"))
IDLE = int(os.environ.get("COURSE_HUB_IDLE_SECONDS", "3600"))  # then a server is stopped
AT_ONCE = 10  # servers that may start at the same time

c = get_config()  # noqa: F821

# The proxy is the only part that listens to the world. In front of it, or in it, goes TLS.
c.JupyterHub.bind_url = ADDRESS
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{os.environ.get('COURSE_HUB_PORT', '8081')}"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{os.environ.get('COURSE_HUB_API', '8001')}"
c.ConfigurableHTTPProxy.command = os.environ.get(
    "COURSE_HUB_PROXY", "configurable-http-proxy"
).split()
c.ConfigurableHTTPProxy.pid_file = str(STATE / "proxy.pid")
c.JupyterHub.db_url = f"sqlite:///{STATE / 'jupyterhub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(STATE / "cookie_secret")
# Learners' servers go on while the hub is restarted, for instance to change this file.
c.JupyterHub.cleanup_servers = False

# Who may log in: users of this machine, by their password here.
c.JupyterHub.authenticator_class = "pam"
c.PAMAuthenticator.allowed_groups = {GROUP}
c.Authenticator.admin_users = ADMINS
c.Authenticator.any_allow_config = True

# One server each, as that user, with the course's Python.
c.JupyterHub.concurrent_spawn_limit = AT_ONCE
c.Spawner.cmd = ["/bin/sh", str(Path(__file__).with_name("start-server.sh"))]
c.Spawner.args = [
    # A kernel that nobody looks at gives its memory back; the notebook and my_engine/ are on disk.
    "--MappingKernelManager.cull_idle_timeout=1800",
    "--MappingKernelManager.cull_interval=120",
]
c.Spawner.notebook_dir = "~/paged-attention"
c.Spawner.default_url = "/lab/tree/notebooks/00_start_here.ipynb"
c.Spawner.http_timeout = 120
c.Spawner.start_timeout = 120
c.Spawner.env_keep = ["PATH", "LANG", "LC_ALL"]
c.Spawner.environment = {
    "COURSE": str(COURSE),
    "COURSE_HUB_PYTHON": str(PYTHON),
    "OMP_NUM_THREADS": str(max(1, int(CPUS))),  # or everybody's PyTorch takes every core
    "PYTHONNOUSERSITE": "1",
}
c.Spawner.mem_limit = MEMORY * 2**20
c.Spawner.cpu_limit = CPUS


class LimitedSpawner(LocalProcessSpawner):
    """Where there is no systemd: the kernel's limits for processes. They bind each process by
    itself, and not all of one learner's together; SystemdSpawner's are the real ones."""

    def make_preexec_fn(self, name):
        become = super().make_preexec_fn(name)

        def limit():
            resource.setrlimit(resource.RLIMIT_DATA, (self.mem_limit, self.mem_limit))
            resource.setrlimit(resource.RLIMIT_NPROC, (512, 512))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.nice(5)  # the hub and the proxy answer first
            become()

        return limit


if Path("/run/systemd/system").is_dir():
    c.JupyterHub.spawner_class = "systemd"  # limits of memory and CPU for all of a learner's work
    c.SystemdSpawner.dynamic_users = False
    c.SystemdSpawner.isolate_tmp = True
    c.SystemdSpawner.disable_user_sudo = True
else:
    c.JupyterHub.spawner_class = LimitedSpawner

# Whoever has gone home gives their memory back.
c.JupyterHub.services = [
    {
        "name": "idle-culler",
        "command": [
            sys.executable, "-m", "jupyterhub_idle_culler", f"--timeout={IDLE}",
            f"--cull-every={max(10, IDLE // 4)}",
        ],
    }
]  # fmt: skip
c.JupyterHub.load_roles = [
    {
        "name": "idle-culler",
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
        "services": ["idle-culler"],
    }
]
