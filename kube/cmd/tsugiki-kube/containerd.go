package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/tsugiki/tsugiki/kube/host"
	"github.com/tsugiki/tsugiki/kube/install"
)

// notLoadedError says that containerd does not have the runtimes that were installed, and what to do.
type notLoadedError struct {
	install.State
	names []string // runtimes that containerd has not read as they are in its configuration
}

func (e notLoadedError) Error() string {
	const unread = "containerd has not read the present tables of the runtimes"
	const restart = "restart containerd on this node (systemctl restart containerd; containers run on)"
	names := strings.Join(e.names, ", ")
	switch {
	case len(e.Missing) > 0:
		return fmt.Sprintf("%s does not have the runtimes that were added to it (%s): see the log of the container install, "+
			"and delete this pod, which adds them again; if a program generates the file, its template has to have them (docs/KUBERNETES.md)",
			e.File, strings.Join(e.Missing, ", "))
	case e.File == "":
		return fmt.Sprintf("containerd does not know the runtimes %s: add them to its configuration (docs/KUBERNETES.md), and %s", names, restart)
	case e.Restarted:
		return fmt.Sprintf("%s %s in %s. A restart by systemd was begun once for these tables, and is not begun again: %s. "+
			"If that does not help, containerd's log says why, or containerd config dump shows that it reads another file, or that a file of imports replaces the table",
			unread, names, e.File, restart)
	}
	return fmt.Sprintf("%s %s in %s: %s", unread, names, e.File, restart)
}

// knows returns an error if containerd has not loaded what was installed. The error says what to do.
func (f *nodeFlags) knows() error {
	o := f.installation()
	s, err := o.State()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	names, err := host.NotLoaded(ctx, f.socket, s.Runtimes)
	if err != nil || len(names) == 0 && len(s.Missing) == 0 {
		return err
	}
	return notLoadedError{s, names}
}

// restart has systemd of the node restart containerd, if that has not read its configuration since it is as
// it is. Containers run on meanwhile. It does so once for each content of the file: what a restart does not
// mend, another one does not either, and the agent may be started again and again. A restart that fails counts as
// none: the next start of the agent's container tries again, perhaps with another unit.
func (f *nodeFlags) restart() error {
	if f.unit == "" {
		return nil
	}
	o := f.installation()
	err := f.knows()
	if err == nil {
		return o.ForgetRestart()
	}
	stale := notLoadedError{}
	if !errors.As(err, &stale) || len(stale.names) == 0 || stale.Restarted { // one that gives no answer is not restarted for that
		return err
	}
	if is, noted := o.NoteRestart(stale.State); noted != nil || !is {
		return errors.Join(err, noted)
	}
	slog.Info("containerd is started anew, for our runtimes", "unit", f.unit, "runtimes", stale.names)
	if err := systemctl("restart", f.unit); err != nil {
		return errors.Join(fmt.Errorf("systemctl restart %s: %w", f.unit, err), o.ForgetRestart())
	}
	return nil
}

// systemctl calls the node's systemd. Tests have another one.
var systemctl = func(args ...string) error {
	return asStatus(host.RunInside(os.Stderr, "systemctl", args...))
}
