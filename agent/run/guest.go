package run

import (
	"errors"

	"github.com/tsugiki/tsugiki/agent/vm"
	"github.com/tsugiki/tsugiki/internal/kernel"
)

// Guest is a virtual machine whose sockets are this process's. It has a container without programs.
type Guest struct {
	alone    *Alone
	machine  *vm.Machine
	contexts vm.Contexts
}

// Attach makes the container of a virtual machine, and listens for its VMM. The program has no command. On an
// error nothing is left.
func Attach(p Program, place vm.Place) (*Guest, error) {
	g := &Guest{alone: newAlone(&p)}
	err := g.start(&p, place)
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

func (g *Guest) start(p *Program, place vm.Place) error {
	if err := kernel.Require(); err != nil {
		return err
	}
	a := g.alone
	if err := a.container.Prepare(); err != nil {
		return err
	}
	if err := a.useOwn(p); err != nil {
		return err
	}
	if err := a.make(p); err != nil {
		return err
	}
	var err error
	if g.machine, err = vm.Attach(a.container, place, &g.contexts, vm.HolderIn(p.RunDir, p.Name), nil); err != nil {
		return err
	}
	a.api.Start()
	return nil
}

// Serve serves one VMM after another, until End.
func (g *Guest) Serve() error { return g.machine.Serve() }

// End makes Serve return, also while a VMM runs: its guest loses its sockets.
func (g *Guest) End() { g.machine.End() }

// Close removes the container, after Serve has returned.
func (g *Guest) Close() error { return errors.Join(g.contexts.Close(), g.alone.Close()) }
