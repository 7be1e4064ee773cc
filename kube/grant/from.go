package grant

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"


	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/kube/v1alpha1"
)

// Peer is a pod of the node that a rule may select.
type Peer struct {
	UID             string
	Namespace       string
	NamespaceLabels map[string]string
	Labels          map[string]string
	// Grafted says that the agent knows the pod by its UID.
	Grafted bool
	// Addrs are the pod's own; none, if it is in the node's network.
	Addrs []netip.Addr
}

// The limits of the agent. sourcesMax is for the sources of a rule; rowsMax for those of all ingress
// rules of a container, where a rule without any is one, and one row is the agent's; sizeMax for a
// grant, in bytes.
const (
	sourcesMax = 2048
	rowsMax    = 8192
	sizeMax    = 1 << 20
)

// errUnixFrom says why a rule has no sources.
var errUnixFrom = errors.New("from is for endpoints with an address, and this one is a unix socket; leave from out")

// block is a prefix without some parts of it.
type block struct {
	cidr   netip.Prefix
	except []netip.Prefix
}

// has tells whether a block has all of a prefix, which is none that is wider than one of the block.
func (b block) has(p netip.Prefix) bool {
	return contains(b.cidr, p) && !slices.ContainsFunc(b.except, func(e netip.Prefix) bool { return contains(e, p) })
}

// sources returns the sources of an ingress rule as the agent reads them.
func (d *decider) sources(from []v1alpha1.Peer) (string, error) {
	if len(from) == 0 {
		return "", nil
	}
	blocks, err := blocksOf(from)
	if err != nil {
		return "", err
	}
	// The pod itself reaches its servers in any case. So nobody else does, if nothing is selected.
	words := []string{"from:pod:" + string(d.Pod.UID)}
	for _, p := range d.selected(from) {
		if p.Grafted && p.UID != string(d.Pod.UID) {
			words = append(words, "from:pod:"+p.UID)
		}
		for _, a := range p.Addrs {
			blocks = append(blocks, block{cidr: netip.PrefixFrom(a, a.BitLen())})
		}
	}
	words = append(words, wordsOf(blocks)...)
	if len(words) > sourcesMax {
		return "", fmt.Errorf("from has %d prefixes and pods of this node, at most %d may be; select fewer pods, or write their prefix as an ipBlock", len(words), sourcesMax)
	}
	return "+" + strings.Join(words, "+"), nil
}

// size refuses a grant that is more than the agent takes.
func size(g *api.Grant) error {
	for _, c := range slices.Sorted(maps.Keys(g.Containers)) {
		rows := 1
		for _, rule := range g.Containers[c].Ingress {
			rows += max(1, strings.Count(rule, "+from:")+strings.Count(rule, "+except:"))
		}
		if rows > rowsMax {
			return fmt.Errorf("the ingress rules of container %s have %d prefixes and pods of this node, at most %d may be; select fewer pods, or write their prefix as an ipBlock", c, rows, rowsMax)
		}
	}
	text, err := json.Marshal(g)
	if err == nil && len(text) > sizeMax {
		err = fmt.Errorf("the rules of the pod have %d bytes, at most %d may be; write fewer rules, or fewer and wider prefixes", len(text), sizeMax)
	}
	return err
}

// selected returns the pods of the node that a list selects, by UID.
func (d *decider) selected(from []v1alpha1.Peer) (list []Peer) {
	if !slices.ContainsFunc(from, func(f v1alpha1.Peer) bool { return f.IPBlock == nil }) {
		return nil
	}
	for _, p := range d.Peers() {
		if slices.ContainsFunc(from, func(f v1alpha1.Peer) bool { return d.selects(f, p) }) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b Peer) int { return strings.Compare(a.UID, b.UID) })
	return list
}

// selects tells whether a part of a list selects a pod. blocksOf has read the selectors.
func (d *decider) selects(f v1alpha1.Peer, p Peer) bool {
	is := f.IPBlock == nil && p.Namespace == d.Pod.Namespace
	if f.NamespaceSelector != nil {
		is, _ = matches(f.NamespaceSelector, p.NamespaceLabels)
	}
	if is && f.PodSelector != nil {
		is, _ = matches(f.PodSelector, p.Labels)
	}
	return is
}

// blocksOf returns the blocks of a list, and what is wrong with it.
func blocksOf(from []v1alpha1.Peer) (blocks []block, err error) {
	for i, f := range from {
		var b block
		switch {
		case f.IPBlock != nil:
			if b, err = blockOf(f.IPBlock); err == nil {
				blocks = append(blocks, b)
			}
		case f.PodSelector == nil && f.NamespaceSelector == nil:
			err = errors.New("it has neither an ipBlock nor a selector")
		}
		for _, s := range []*v1alpha1.LabelSelector{f.PodSelector, f.NamespaceSelector} {
			if err == nil && s != nil {
				_, err = matches(s, nil)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("from %d: %w", i, err)
		}
	}
	return blocks, nil
}

func blockOf(b *v1alpha1.IPBlock) (is block, err error) {
	if is.cidr, err = parsePrefix(b.CIDR); err != nil {
		return is, err
	}
	for _, text := range b.Except {
		e, err := parsePrefix(text)
		if err == nil && !contains(is.cidr, e) {
			err = fmt.Errorf("except %s is not in %s", e, is.cidr)
		}
		if err != nil {
			return is, err
		}
		is.except = append(is.except, e)
	}
	return is, nil
}

// wordsOf returns blocks as sources. Of these the longest prefix decides; of blocks, an address is in
// all if it is in one. So each prefix is let in if a block has it.
func wordsOf(blocks []block) (words []string) {
	var all []netip.Prefix
	for _, b := range blocks {
		all = append(append(all, b.cidr), b.except...)
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		if a.Bits() != b.Bits() {
			return a.Bits() - b.Bits()
		}
		return a.Addr().Compare(b.Addr())
	})
	var in []netip.Prefix
	for _, p := range slices.Compact(all) {
		switch {
		case slices.ContainsFunc(blocks, func(b block) bool { return b.has(p) }):
			in = append(in, p)
			words = append(words, "from:"+p.String())
		case slices.ContainsFunc(in, func(q netip.Prefix) bool { return contains(q, p) }):
			words = append(words, "except:"+p.String())
		}
	}
	return words
}

// checkPeers tells what is wrong with the list of a rule for an endpoint.
func checkPeers(from []v1alpha1.Peer, e *v1alpha1.GraftEndpoint) error {
	if len(from) > 0 && e.Spec.Type == v1alpha1.Unix {
		return fmt.Errorf("GraftEndpoint %s: %w", e.Name, errUnixFrom)
	}
	_, err := blocksOf(from)
	return err
}
