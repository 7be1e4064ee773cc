package container

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/policy/enforcer"
)

// ErrUntranslated says that a container does not have its IPv4 translated.
var ErrUntranslated = errors.New("the container's IPv4 is not translated")

// Translation describes how IPv4 is translated. The error is ErrUntranslated if it is not, or not
// yet.
func (c *Container) Translation() (api.Translation, error) {
	var shown api.Translation
	err := c.withTranslation(func(t *translation) error {
		connected, err := c.connected()
		if err != nil {
			return fmt.Errorf("find the container's connected sockets: %w", err)
		}
		shown = api.Translation{
			Container: c.spec.Name, Pool: t.Prefix().String(), Peers: t.peers.String(), Resolvers: []string{},
			UDP: t.udp.Load() != nil, Counts: t.counts(), Mappings: t.mappings(connected),
		}
		peers, err := t.udp.Load().peers()
		if err != nil {
			return err
		}
		shown.Mappings = append(shown.Mappings, peers...)
		if n := t.prefix(); n.IsValid() {
			shown.NAT64 = n.String()
		}
		for _, r := range c.Resolvers() {
			shown.Resolvers = append(shown.Resolvers, r.String())
		}
		return nil
	})
	return shown, err
}

// FlushTranslation forgets the mappings that are not in use.
func (c *Container) FlushTranslation() (api.Flushed, error) {
	var f api.Flushed
	err := c.withTranslation(func(t *translation) (err error) {
		f.Forgotten, err = t.Flush()
		f.Kept = t.Stats().Mappings
		return err
	})
	return f, err
}

// withTranslation calls a function with the translation of a container that is not being removed.
func (c *Container) withTranslation(do func(*translation) error) error {
	c.changes.Lock()
	defer c.changes.Unlock()
	if c.closing || c.translation == nil || c.translation.proxy == nil {
		return ErrUntranslated
	}
	return do(c.translation)
}

// translationCounts returns the counters of the translation; nil if there is none. While the
// container is being changed, they are those of the last call.
func (c *Container) translationCounts() *api.TranslationStats {
	if c.changes.TryLock() {
		defer c.changes.Unlock()
		if t := c.translation; t != nil && t.proxy != nil && !c.closing {
			counts := t.counts()
			c.translated.Store(&counts)
		}
	}
	return c.translated.Load()
}

func (t *translation) counts() api.TranslationStats {
	s, names, inUse := t.Stats(), t.proxy.Counts(), t.InUse()
	return api.TranslationStats{
		Addresses: api.Addresses{InUse: inUse, Idle: max(0, s.Mappings-inUse), Free: max(0, t.Size()-s.Mappings)},
		Reclaimed: s.Reclaimed, Exhausted: s.Exhausted, Refused: s.Refused,
		Names:  api.Names{Answered: names.Answered, Failed: names.Failed, Unanswered: names.Failures, Forged: names.Forged},
		Relays: t.relays(),
	}
}

// peers describes the hosts that have asked UDP servers.
func (d *datagrams) peers() ([]api.Mapping, error) {
	if d == nil {
		return nil, nil
	}
	peers, err := d.Peers()
	var now unix.Timespec
	if err == nil {
		err = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	}
	if err != nil {
		return nil, err
	}
	var list []api.Mapping
	for _, p := range peers {
		left := p.Heard + enforcer.PeerLifetime - time.Duration(now.Nano())
		list = append(list, api.Mapping{
			V4: p.V4.String(), V6: p.V6.String(), Until: time.Now().Add(left).UTC().Format(time.RFC3339), InUse: left > 0,
		})
	}
	return list, nil
}

// mappings describes the mappings. connected has the numbers of sockets, by both addresses.
func (t *translation) mappings(connected map[netip.Addr]int) []api.Mapping {
	boot := time.Now().Add(-t.Now())
	list := []api.Mapping{}
	for _, m := range t.Mappings() {
		sockets := connected[m.V4] + connected[m.V6]
		list = append(list, api.Mapping{
			V4: m.V4.String(), V6: m.V6.String(), Sockets: sockets, Until: boot.Add(m.Until).UTC().Format(time.RFC3339),
			InUse: sockets > 0 || m.Until > t.Now(),
		})
	}
	return list
}
