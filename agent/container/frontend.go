package container

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/intercept/notify"
	"github.com/tsugiki/tsugiki/policy"
)

// Preloads tells whether the container's programs get the shim.
func (c *Container) Preloads() bool {
	return c.spec.Mode != filter.Seccomp && len(c.spec.Endpoints.All()) > 0
}

func namesPort0(r policy.Ingress) bool { return r.Ports.Contains(0) }

// Serve starts the front end for a filter's listener, before programs under the filter can make
// their first call. The container owns the listener from then on, unless Serve fails.
func (c *Container) Serve(listener *os.File) error {
	c.changes.Lock()
	defer c.changes.Unlock()
	config := gate.Config{
		Own:        c.ownNS,
		Listener:   listener,
		Rules:      c.table.Snapshot(c.netnsOf),
		HostFirst4: c.engine.HostFirst(unix.AF_INET),
		HostFirst6: c.engine.HostFirst(unix.AF_INET6),
		Datagrams:  c.seesDatagrams(),
		Untrapped:  c.state.Untrapped,
		Relayed:    c.servesRelayed(),
		// With a rule for port 0, the engine has to serve the port that the kernel chooses.
		UntrappedPort0: c.state.Untrapped && !slices.ContainsFunc(c.spec.Ingress, namesPort0),
	}
	if t := c.spec.Translation; t != nil {
		config.Translated = t.Pool
	}
	var err error
	if config.CgroupDir, err = c.keepers.Open(); err != nil {
		return err
	}
	defer config.CgroupDir.Close()
	if c.spec.Outlives {
		config.AdoptSocket, err = newAdoptSocket(c.adoptDir)
		if err == nil {
			config.Pool, err = c.owner.Pool()
		}
	} else {
		config.Kill, err = c.group.Killer()
	}
	if err != nil {
		return err
	}
	if config.Kill != nil {
		defer config.Kill.Close()
	}
	if u := c.spec.User; u != nil {
		config.UID, config.GID = u.UID, u.GID
	}
	g, err := gate.Start(config)
	if err != nil {
		return err
	}
	c.supervise(&supervised{gate: g, listener: listener})
	return nil
}

// supervise answers the requests of a gate from now on.
func (c *Container) supervise(s *supervised) {
	s.supervisor = notify.New(s.listener, s.gate, c.engine, c.answering, c.spec.Decisions, func(cause error) { c.gateEnded(s, cause) }, &c.intercepted)
	c.gates.add(s)
	s.supervisor.Start()
}

const gateKilled = "the gate was killed; the container ends"

// gateEnded ends the container if a gate was lost: nobody would answer the container's calls any
// more.
func (c *Container) gateEnded(s *supervised, cause error) {
	if !s.gate.EndedWell() {
		c.spec.Decisions.Warn(gateKilled, "cause", cause)
		text := gateKilled
		c.cause.Store(&text)
		if err := c.killAll(); err != nil {
			c.log.Error("end container", "err", err)
		}
	}
	if !c.spec.Outlives {
		return // Close does the rest
	}
	if found, last := c.gates.remove(s, &c.retiring); found {
		go func() { // the caller is the gate's supervisor, which has to end
			if err := s.close(); err != nil {
				c.log.Error("close gate", "err", err)
			}
			c.retiring.Done()
			if last && c.Over() {
				c.owner.Ended()
			}
		}()
	}
}
