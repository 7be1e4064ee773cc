package discover

// Daemon marks a process as one that works for many containers, like dockerd, until the process
// ends. An open file of the process belongs to a container if its path contains the container's id.
// The caller is responsible for trusting the process.
func (s *Scanner) Daemon(pid int) {
	s.named[pid] = true
	s.latest = s.latest[:0] // makes the next scan list /proc, in case the table does not have the process yet
	if p := s.table[pid]; p != nil {
		s.serveMany(p)
	}
}

// serveMany gives a process the role daemon if it was passed to Daemon.
func (s *Scanner) serveMany(p *proc) {
	if !s.named[p.PID] || p.role != nobody {
		return
	}
	p.role = daemon
	p.watch()
	s.dirty, s.stale = true, true
}

// Daemons returns the processes that work for many containers: the kernel's name of each, by pid.
func (s *Scanner) Daemons() map[int]string {
	daemons := map[int]string{}
	for pid, p := range s.table {
		if p.role == daemon {
			daemons[pid] = p.comm
		}
	}
	return daemons
}
