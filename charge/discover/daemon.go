package discover

// Daemon has a process taken for one that works for many containers, as dockerd is,
// until it ends: what it has open under a container's id is among the container's
// files. Who calls it answers for the process.
func (s *Scanner) Daemon(pid int) {
	s.named[pid] = true
	s.latest = s.latest[:0] // the next scan lists all, if it is not known yet
	if p := s.table[pid]; p != nil {
		s.serveMany(p)
	}
}

// serveMany gives a process its role if it was named.
func (s *Scanner) serveMany(p *proc) {
	if !s.named[p.PID] || p.role != nobody {
		return
	}
	p.role = daemon
	p.watch()
	s.dirty, s.stale = true, true
}

// Daemons are the processes that work for many containers, by pid, and what the
// kernel calls them.
func (s *Scanner) Daemons() map[int]string {
	daemons := map[int]string{}
	for pid, p := range s.table {
		if p.role == daemon {
			daemons[pid] = p.comm
		}
	}
	return daemons
}
