package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tsugiki/tsugiki/agent/httpapi"
	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/translate/dns"
)

// attachPatience is how long a container may be registered without a program.
const attachPatience = 2 * time.Minute

// register makes a container that has no program yet. On an error nothing is left. If the caller
// has gone, register does not begin or undoes its work: nobody would start the program.
func (d *Daemon) register(ctx context.Context, r api.Registration) (*managed, error) {
	g, err := d.grantFor(ctx, &r)
	var m *managed
	if err == nil && (g == nil || r.Rules != nil) {
		m, err = d.registerAs(ctx, r, g != nil)
	}
	if err == nil && g != nil {
		if err = d.podNotes.note(r.Pod, r.ID, m == nil); err == nil {
			err = d.followAsPod(r.Pod.UID)
		}
		if err == nil {
			err = d.forgetUngranted(r.Pod.UID)
		}
	}
	if err == nil {
		err = d.catchUp(m, r.Pod, g)
	}
	if err != nil && g != nil {
		err = errors.Join(err, d.podNotes.drop(r.Pod, r.ID)) // a container that is not there needs no other one
	}
	if err != nil && m != nil {
		m, err = nil, errors.Join(err, d.undo(m))
	}
	d.tellOf(&r, err)
	return m, err
}

// undo removes a container of which its caller hears an error.
func (d *Daemon) undo(m *managed) error {
	err := d.remove(m, "container cannot have the new grant of its pod, and is removed")
	if errors.Is(err, httpapi.ErrNoContainer) {
		return nil // somebody else removes it
	}
	return err
}

// registerAs is register once it is known what the container's pod is given, if it is in one.
func (d *Daemon) registerAs(ctx context.Context, r api.Registration, granted bool) (*managed, error) {
	if r.Rules == nil && len(r.Image) > 0 {
		d.log.Warn("annotations of the image are not heard: only those count that are given to who starts the container",
			"container", r.Name, "engine", r.Engine, "annotations", strings.Join(r.Image, ","))
	}
	g, err := rules.For(d.config.Load(), &r)
	if err != nil {
		return nil, err
	}
	g.Annotated = g.Annotated || granted // pods may write where paths of their unix endpoints lead
	if granted {
		err = checkNetwork(&r, &g.Rules)
	}
	if err != nil {
		return nil, err
	}
	if !g.Found {
		return nil, nil // it is given nothing, whatever its name is
	}
	if err := rules.CheckPublished(&r, &g.Rules); err != nil {
		return nil, err
	}
	if err := haveResolvers(g.Rules.Translation); err != nil {
		return nil, err
	}
	r.Name = g.Name
	if err := api.CheckName(r.Name); err != nil {
		return nil, fmt.Errorf("%w: %w", rules.ErrRequest, err)
	}
	if err := d.lockName(ctx, r.Name, r.ID); err != nil {
		return nil, err
	}
	defer d.changes.Unlock()
	if err := d.forgetOrphan(r.Name); err != nil {
		return nil, err
	}
	d.memory.setBusyGC()
	m := d.newManaged(d.newIdentity(r, &g), g.Rules)
	err = m.Prepare()
	if err == nil {
		err = m.Make()
	}
	if err != nil {
		return nil, errors.Join(err, d.forget(m))
	}
	if abandoned(ctx) {
		return nil, errors.Join(errAbandoned, d.forget(m))
	}
	d.insert(m)
	m.letPodsIn() // again: pods that have begun meanwhile have not found m
	d.awaitProgram(m, attachPatience)
	d.log.Info("container registered", "container", r.Name, "id", r.ID)
	if len(r.Dropped) > 0 {
		d.log.Info("container loses capabilities with which its programs could get around its rules",
			"container", r.Name, "capabilities", strings.Join(r.Dropped, ","))
	}
	return m, nil
}

func (d *Daemon) newIdentity(r api.Registration, g *rules.Given) identity {
	var token [16]byte
	rand.Read(token[:])
	t := g.Rules.Texts()
	return identity{
		ID: r.ID, Name: r.Name, Token: hex.EncodeToString(token[:]), Boot: d.boot, Created: time.Now().UTC(),
		UID: r.UID, GID: r.GID, LoopbackOnly: r.LoopbackOnly, Programs: r.Programs, Annotated: g.Annotated, Pod: r.Pod, Engine: r.Engine, Published: r.Published,
		Mode: t.Mode, Endpoints: t.Endpoints, Ingress: t.Ingress, Egress: t.Egress, NameRules: t.NameRules, Translate: t.Translate,
	}
}

var resolvConf = "/etc/resolv.conf"

// haveResolvers names the agent's own resolvers if a container whose IPv4 is translated names none.
// The container's record has them, so that a restart of the agent does not change them.
func haveResolvers(t *rules.Translation) (err error) {
	if t == nil || len(t.Resolvers) > 0 {
		return nil
	}
	if t.Resolvers, err = dns.Resolvers(resolvConf); err != nil {
		return fmt.Errorf("%w: %w; name a resolver in the container's rules (dns)", rules.ErrRequest, err)
	}
	return nil
}
