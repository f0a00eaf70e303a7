"""The emoji that ``mmspec/emoji-t2i`` knows, by class, and their plain English short forms.

All of them exist in all three styles. Of two drawings with one everyday name ("dog", "dog face") the face was kept.
"""

from __future__ import annotations

CLASSES: dict[str, str] = {
    "animal": """
        dog-face cat-face mouse-face cow-face horse-face monkey-face pig-face rabbit-face tiger-face dragon-face ant
        bat bear beaver bird black-cat butterfly baby-chick bug camel chicken crab crocodile deer dolphin dove duck
        eagle elephant ewe fish flamingo fly fox frog giraffe goat goose gorilla hamster hatching-chick hedgehog
        hippopotamus honeybee jellyfish kangaroo koala lady-beetle leopard lion lizard llama lobster mammoth octopus
        owl panda parrot paw-prints peacock penguin polar-bear raccoon rat rhinoceros rooster sauropod scorpion seal
        shark shrimp sloth snail snake spider spouting-whale squid swan t-rex tropical-fish turkey turtle unicorn
        whale wolf zebra""",
    "plant": """
        blossom bouquet cactus cherry-blossom coral deciduous-tree evergreen-tree fallen-leaf four-leaf-clover
        hibiscus maple-leaf mushroom palm-tree potted-plant rose seedling shamrock spiral-shell sunflower tulip
        white-flower christmas-tree""",
    "food": """
        avocado bacon baguette-bread banana beer-mug bell-pepper birthday-cake blueberries bread broccoli bubble-tea
        burrito butter candy carrot cheese-wedge cherries chocolate-bar cocktail-glass coconut cookie cooking
        croissant cucumber cup-with-straw cupcake curry-rice cut-of-meat doughnut dumpling ear-of-corn egg eggplant
        french-fries garlic glass-of-milk grapes green-apple green-salad hamburger honey-pot hot-beverage hot-dog
        hot-pepper ice-cream kiwi-fruit lemon lime lollipop mango meat-on-bone melon olive onion pancakes peach
        peanuts pear pie pineapple pizza popcorn potato poultry-leg pretzel red-apple rice-ball sandwich
        soft-ice-cream spaghetti steaming-bowl strawberry sushi taco tangerine teapot tomato tropical-drink waffle
        watermelon wine-glass""",
    "weather": """
        cloud cloud-with-lightning cloud-with-rain cloud-with-snow crescent-moon droplet fire full-moon glowing-star
        high-voltage rainbow ringed-planet snowflake snowman star sun sun-behind-cloud sun-with-face tornado
        umbrella-with-rain-drops volcano water-wave globe-showing-europe-africa full-moon-face snow-capped-mountain
        desert-island""",
    "vehicle": """
        airplane ambulance automobile bicycle bus delivery-truck fire-engine flying-saucer helicopter locomotive
        motor-scooter motorcycle oncoming-automobile police-car racing-car rocket sailboat ship skateboard speedboat
        sport-utility-vehicle taxi tractor train parachute""",
    "place": """
        castle church classical-building ferris-wheel fountain house hospital japanese-castle school tent stop-sign
        vertical-traffic-light statue-of-liberty tokyo-tower circus-tent""",
    "activity": """
        american-football artist-palette balloon baseball basketball bowling boxing-glove bullseye crystal-ball
        game-die ice-skate jack-o-lantern joystick kite party-popper ping-pong pool-8-ball puzzle-piece red-heart
        soccer-ball sparkles sports-medal teddy-bear tennis trophy video-game volleyball wrapped-gift yo-yo""",
    "object": """
        alarm-clock anchor axe backpack bell billed-cap bomb books briefcase camera candle crown desktop-computer dna
        door dress drum envelope fire-extinguisher flashlight floppy-disk gear gem-stone glasses graduation-cap
        guitar hammer headphone high-heeled-shoe hourglass-done jeans key laptop light-bulb lipstick locked magnet
        magnifying-glass-tilted-left megaphone microphone microscope mobile-phone money-bag musical-note necktie
        package pencil pill radio ring running-shoe saxophone scissors screwdriver shield shopping-cart socks
        stopwatch sunglasses syringe t-shirt telephone television test-tube toothbrush top-hat trumpet violin watch
        wrench closed-umbrella compass""",
    "face": """
        alien alien-monster angry-face angry-face-with-horns clown-face cold-face cowboy-hat-face crying-face
        exploding-head face-blowing-a-kiss face-with-medical-mask face-with-tears-of-joy flushed-face ghost
        grinning-face hot-face loudly-crying-face nauseated-face nerd-face neutral-face partying-face pile-of-poo
        robot skull sleeping-face smiling-face-with-halo smiling-face-with-heart-eyes smiling-face-with-sunglasses
        star-struck thinking-face winking-face zipper-mouth-face slightly-smiling-face broken-heart blue-heart
        green-heart yellow-heart purple-heart kiss-mark""",
}
"""Class name -> its emoji, as the icon packages name them. The order of the classes is their class id."""

_ICONIC = """
    dog-face cat-face mouse-face cow-face horse-face monkey-face pig-face rabbit-face tiger-face lion bear panda koala
    fox frog penguin octopus fish tropical-fish turtle butterfly honeybee snail whale elephant owl chicken duck
    cactus sunflower rose tulip palm-tree evergreen-tree deciduous-tree mushroom four-leaf-clover maple-leaf
    red-apple green-apple banana strawberry watermelon grapes lemon tangerine cherries pineapple carrot tomato eggplant
    ear-of-corn pizza hamburger french-fries hot-dog doughnut cookie birthday-cake ice-cream lollipop egg avocado bread
    cheese-wedge
    sun rainbow cloud snowman snowflake fire star crescent-moon droplet high-voltage umbrella-with-rain-drops volcano
    ringed-planet
    rocket fire-engine automobile bus taxi police-car airplane sailboat bicycle locomotive flying-saucer ambulance
    house castle tent stop-sign vertical-traffic-light
    soccer-ball basketball baseball tennis balloon jack-o-lantern wrapped-gift red-heart teddy-bear trophy game-die
    bullseye
    key light-bulb alarm-clock crown bell guitar envelope books camera candle hammer glasses magnet gem-stone t-shirt
    telephone pencil
    robot ghost skull alien grinning-face smiling-face-with-sunglasses smiling-face-with-heart-eyes crying-face
    angry-face winking-face clown-face nerd-face pile-of-poo sleeping-face thinking-face blue-heart green-heart
"""
ICONIC: tuple[str, ...] = tuple(_ICONIC.split())
"""The emoji that the embedded decoder learns: few enough to be learnt by heart within the hour on two cores."""

SHORT_FORMS: dict[str, tuple[str, ...]] = {
    "dog-face": ("dog",),
    "cat-face": ("cat",),
    "mouse-face": ("mouse",),
    "cow-face": ("cow",),
    "horse-face": ("horse",),
    "monkey-face": ("monkey",),
    "pig-face": ("pig",),
    "rabbit-face": ("rabbit", "bunny"),
    "tiger-face": ("tiger",),
    "dragon-face": ("dragon",),
    "hippopotamus": ("hippo",),
    "rhinoceros": ("rhino",),
    "honeybee": ("bee",),
    "lady-beetle": ("ladybug",),
    "baby-chick": ("chick",),
    "ewe": ("sheep",),
    "sauropod": ("dinosaur",),
    "deciduous-tree": ("tree",),
    "evergreen-tree": ("pine tree",),
    "four-leaf-clover": ("clover",),
    "spiral-shell": ("shell",),
    "baguette-bread": ("baguette",),
    "beer-mug": ("beer",),
    "bell-pepper": ("pepper",),
    "cheese-wedge": ("cheese",),
    "chocolate-bar": ("chocolate",),
    "cocktail-glass": ("cocktail",),
    "cooking": ("fried egg",),
    "cut-of-meat": ("steak",),
    "doughnut": ("donut",),
    "ear-of-corn": ("corn",),
    "french-fries": ("fries",),
    "glass-of-milk": ("milk",),
    "green-salad": ("salad",),
    "hamburger": ("burger",),
    "honey-pot": ("honey",),
    "hot-beverage": ("coffee",),
    "kiwi-fruit": ("kiwi",),
    "red-apple": ("apple",),
    "steaming-bowl": ("noodles",),
    "tangerine": ("orange",),
    "wine-glass": ("wine",),
    "cloud-with-lightning": ("lightning cloud",),
    "cloud-with-rain": ("rain",),
    "cloud-with-snow": ("snow",),
    "crescent-moon": ("moon",),
    "high-voltage": ("lightning",),
    "ringed-planet": ("planet", "saturn"),
    "globe-showing-europe-africa": ("earth", "globe"),
    "umbrella-with-rain-drops": ("umbrella",),
    "snow-capped-mountain": ("mountain",),
    "desert-island": ("island",),
    "water-wave": ("wave",),
    "automobile": ("car",),
    "bicycle": ("bike",),
    "delivery-truck": ("truck",),
    "fire-engine": ("fire truck",),
    "flying-saucer": ("ufo",),
    "sport-utility-vehicle": ("suv",),
    "airplane": ("plane",),
    "vertical-traffic-light": ("traffic light",),
    "classical-building": ("temple",),
    "soccer-ball": ("football",),
    "crystal-ball": ("magic ball",),
    "game-die": ("dice",),
    "jack-o-lantern": ("pumpkin",),
    "pool-8-ball": ("eight ball",),
    "red-heart": ("heart",),
    "wrapped-gift": ("gift", "present"),
    "billed-cap": ("cap",),
    "desktop-computer": ("computer",),
    "gem-stone": ("gem", "diamond"),
    "graduation-cap": ("graduation hat",),
    "headphone": ("headphones",),
    "high-heeled-shoe": ("high heel",),
    "hourglass-done": ("hourglass",),
    "locked": ("lock",),
    "magnifying-glass-tilted-left": ("magnifying glass",),
    "mobile-phone": ("phone",),
    "running-shoe": ("shoe", "sneaker"),
    "television": ("tv",),
    "angry-face-with-horns": ("devil",),
    "clown-face": ("clown",),
    "cowboy-hat-face": ("cowboy",),
    "face-with-tears-of-joy": ("laughing face",),
    "smiling-face-with-halo": ("angel",),
    "smiling-face-with-heart-eyes": ("love face",),
    "smiling-face-with-sunglasses": ("cool face",),
    "slightly-smiling-face": ("smile", "smiling face"),
    "pile-of-poo": ("poo",),
    "alien-monster": ("space invader",),
}
"""Everyday names of emoji whose own name is long; no short form is another emoji's name."""
