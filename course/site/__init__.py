"""The course as pages to read: ``python -m course site``, or ``make site``.

The stored notebooks, the solved labs and the docs become static pages that need no kernel, no
network and no server. ``pages`` says what there is and what leads where, ``markdown`` and
``notebook`` turn prose and notebooks into HTML (nbconvert walks the cells), ``frames`` and
``rerun`` make the pictures that sliders move through, ``summary`` a page to print for each lesson,
``search`` the index, ``style`` the colours, and ``build`` puts them together. ``check`` reads what
was built, as a browser would.
"""
