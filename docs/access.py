"""Changes to smalldocs' markup that make the pages good for keyboards and screen readers; what axe-core finds is fixed here"""
import re

SECTION = re.compile(r'<a (class="sidebar-item-text sidebar-link text-start" data-bs-toggle="collapse" data-bs-target="#([\w-]+)") role="navigation"([^>]*)>(.*?)</a><a class="sidebar-item-toggle[^>]*>(.*?)</a>', re.S)

def section(m):
    "One button for a section of the sidebar, where there were two links that lead nowhere"
    return f'<button type="button" {m[1]} aria-controls="{m[2]}"{m[3]}>{m[4]}{m[5]}</button>'

CHANGES = {
    '<nav class="page-navigation">':'<nav class="page-navigation" aria-label="Previous and next page">',
    '<nav class="navbar ':'<nav aria-label="Site" class="navbar ',
    '<nav class="quarto-secondary-nav">':'<nav class="quarto-secondary-nav" aria-label="Menu">',
    '<nav id="quarto-sidebar" ':'<nav id="quarto-sidebar" aria-label="Pages" ',
    '<div id="quarto-margin-sidebar" ':'<div id="quarto-margin-sidebar" role="complementary" aria-label="Beside the page" ',
    '<nav id="TOC" role="doc-toc"':'<nav id="TOC" role="doc-toc" aria-labelledby="toc-title"',
    '<button title="Copy to Clipboard" ':'<button type="button" title="Copy to Clipboard" aria-label="Copy this code" ',
    '<th></th>':'<td></td>',
    '<header id="quarto-header"':'<a class="skip" href="#quarto-document-content">Skip to the text</a><header id="quarto-header"',
    '<main class="content" id="quarto-document-content"':'<main class="content" id="quarto-document-content" tabindex="-1"'}

def open_up(text):
    "The text of a page, changed"
    for old,new in CHANGES.items(): text = text.replace(old, new)
    return SECTION.sub(section, text)

def open_up_all(site):
    for p in site.rglob('*.html'): p.write_text(open_up(p.read_text()))
